#!/usr/bin/env python3
"""schemathesis against `vamp serve`: requests made from /openapi.json, right and wrong ones.

    schemathesis_test.py build/release/vamp [EXAMPLES]

Every answer must be one that the description has, what it calls wrong must be refused, and nothing may
hang or fail in the server. What it calls right may be refused: fields can contradict one another.
Skipped where it is not installed (scripts/python-env.sh clients).
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

from clients_test import KEY, VENV, Server, check_shutdown, make_model, reenter_in_venv

EXAMPLES = 30  # of an operation


def run_schemathesis(url: str, folder: pathlib.Path, examples: int) -> None:
    run = subprocess.run(
        [VENV / "bin/schemathesis", "run", url + "/openapi.json", "--header", f"Authorization: Bearer {KEY}",
         "--phases", "examples,coverage,fuzzing", "--exclude-checks", "positive_data_acceptance",
         "--max-examples", str(examples), "--seed", "1", "--generation-deterministic",
         "--request-timeout", "60", "--continue-on-failure",
         "--warnings", "off", "--no-color"],
        cwd=folder, capture_output=True, text=True)
    print(run.stdout[-20000:], run.stderr[-2000:])
    if run.returncode != 0:
        sys.exit("schemathesis found faults")


def main() -> None:
    reenter_in_venv()
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        make_model(folder)
        # Short answers, so that what asks for the longest takes no time.
        server = Server(sys.argv[1], folder, "--max-model-len", "256", "--tool-call-parser", "hermes",
                        "--enable-auto-tool-choice")
        try:
            server.wait_ready()
            run_schemathesis(server.url, folder, int(sys.argv[2]) if len(sys.argv) > 2 else EXAMPLES)
            with urllib.request.urlopen(server.url + "/load") as reply:
                assert json.loads(reply.read()) == {"server_load": 0}, "requests are left behind"
            check_shutdown(server)
        finally:
            server.process.kill()


if __name__ == "__main__":
    main()
