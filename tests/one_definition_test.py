#!/usr/bin/env python3
"""Fails when two headers define a type of one name in one namespace: a program that has both is broken, and
neither compiler nor linker says so."""

import collections
import pathlib
import re
import sys

SRC = pathlib.Path(__file__).resolve().parent.parent / "src"


def types_of(header: pathlib.Path) -> list[str]:
    """The types defined at namespace level, with their namespaces; none of a nameless one."""
    names, open_namespaces = [], []
    for line in header.read_text().splitlines():
        if match := re.match(r"(?:inline )?namespace\s*([\w:]*)\s*\{", line):
            open_namespaces.append(match[1])
        elif re.match(r"\}\s*// namespace", line):
            open_namespaces.pop()
        elif match := re.match(r"(?:class|struct|enum class|enum|union) (\w+)(?: final)?(?: ?:[^:].*)? ?\{", line):
            # The kernels are compiled once for each instruction set, in a namespace named by a macro.
            if all(open_namespaces) and "VAMP_ISA" not in open_namespaces[-1]:
                names.append("::".join([*open_namespaces, match[1]]))
    return names


def main() -> None:
    places = collections.defaultdict(list)
    for header in sorted(SRC.rglob("*.h")):
        for name in types_of(header):
            places[name].append(str(header.relative_to(SRC.parent)))
    faults = [f"{name} is defined in {' and '.join(where)}: rename one" for name, where in places.items()
              if len(where) > 1]
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(places)} types, each defined once")


if __name__ == "__main__":
    main()
