#!/usr/bin/env python3
"""Fails when an include goes the wrong way. The arrows are the `vamp_library(... DEPS ...)` lines."""

import pathlib
import re
import sys

SRC = pathlib.Path(__file__).resolve().parent.parent / "src"


def library_deps() -> dict[str, set[str]]:
    """Each library with all that it may include: itself and, transitively, its DEPS."""
    direct: dict[str, set[str]] = {}
    for cmake in SRC.glob("*/CMakeLists.txt"):
        match = re.search(r"vamp_library\(\s*(\w+)(?:\s+DEPS((?:\s+\w+)*?))?(?=\s+[A-Z_]+\b|\s*\))",
                          cmake.read_text())
        if match:
            direct[match[1]] = set((match[2] or "").split())

    def closure(name: str) -> set[str]:
        return {name}.union(*(closure(dep) for dep in direct[name]))

    return {name: closure(name) for name in direct}


def main() -> None:
    deps = library_deps()
    for forbidden in (("core", "memory"), ("memory", "core")):
        if forbidden[1] in deps.get(forbidden[0], set()):
            sys.exit(f"{forbidden[0]} must never depend on {forbidden[1]}: they meet in exec")
    faults = []
    files = [f for f in SRC.rglob("*") if f.suffix in (".h", ".cc", ".cu", ".cuh")]
    for file in files:
        library = file.relative_to(SRC).parts[0]
        for number, line in enumerate(file.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"/]+)/', line)
            if match and match[1] not in deps.get(library, {library}):
                faults.append(f"{file.relative_to(SRC.parent)}:{number}: {library} may not include "
                              f"{match[1]} (allowed: {', '.join(sorted(deps.get(library, ())))})")
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(files)} files of {len(deps)} libraries: every include goes the allowed way")


if __name__ == "__main__":
    main()
