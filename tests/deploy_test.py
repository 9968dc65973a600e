#!/usr/bin/env python3
"""Holds deploy/ to the program: every metric that a dashboard or alert names exists, every flag too.

promtool, where it is installed, also checks the rules (Debian's package prometheus).
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"


def metrics() -> set[str]:
    names = set()
    for name, kind in re.findall(r"^\| `([a-z]+:\w+)` \| (\w+)", (ROOT / "docs/metrics.md").read_text(), re.M):
        names.update({name + end for end in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name})
    assert len(names) > 30, "docs/metrics.md: where is its table?"
    return names


def flags() -> set[str]:
    names = set(re.findall(r"--[a-z][a-z0-9-]+", (ROOT / "docs/serving.md").read_text()))
    assert "--port" in names, "docs/serving.md: where are its flags?"
    return names


def main() -> None:
    faults = []
    dashboard = json.loads((DEPLOY / "grafana/vamp.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    alerts = (DEPLOY / "prometheus/alerts.yml").read_text()
    known = metrics()
    for where, text in (("grafana/vamp.json", "\n".join(expressions)), ("prometheus/alerts.yml", alerts)):
        used = set(re.findall(r"(?:vllm|vamp):\w+", text))
        assert used, f"{where} names no metric"
        faults += [f"deploy/{where}: no metric is called {name}" for name in sorted(used - known)]
    serve_flags = flags()
    for path in (p for p in DEPLOY.rglob("*") if p.is_file() and p.suffix != ".json"):
        for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", path.read_text())):
            own = flag in serve_flags
            others = flag in ("--rm", "--system", "--home-dir", "--no-install-recommends", "--from", "--start-period")
            if not own and not others:
                faults.append(f"{path.relative_to(ROOT)}: `vamp serve` has no flag {flag}")
    if promtool := shutil.which("promtool"):
        for command in (["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"]):
            run = subprocess.run([promtool, *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True)
            if run.returncode != 0:
                faults.append(run.stdout + run.stderr)
    print("\n".join(faults) or f"deploy/: {len(expressions)} expressions of the dashboard and all alerts name metrics that exist")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
