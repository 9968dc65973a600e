#!/usr/bin/env python3
"""`vamp serve` as a process when things go wrong: an engine that hangs, no memory left, SIGTERM in the midst.

    serve_faults_test.py build/release/vamp
"""

import concurrent.futures
import json
import pathlib
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from clients_test import make_model

PATIENCE = 60  # seconds
STUCK = ("--sim-step-ms", "1000000")
STOP_LIMIT = 5  # seconds that the engine has to stop, behind --drain-timeout
MIB = 1 << 20


class Server:
    def __init__(self, vamp: str, model: pathlib.Path, *flags: str) -> None:
        self.process = subprocess.Popen(
            [vamp, "serve", str(model), "--port", "0", "--executor", "sim", "--gpu-memory-utilization", "0.1", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().split()[-1])
        self.log: list[str] = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self.reader.start()
        self.wait_for_health(200)

    def get(self, path: str, body: dict | None = None) -> tuple[int, str]:
        data = json.dumps(body).encode() if body else None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data, PATIENCE) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def ask(self, stream: bool = False) -> tuple[int, str]:
        return self.get("/v1/completions", {"prompt": "hello", "max_tokens": 4, "stream": stream})

    def wait_for_health(self, status: int) -> str:
        end = time.monotonic() + PATIENCE
        while (answer := self.get("/health"))[0] != status:
            assert time.monotonic() < end, answer
            time.sleep(0.05)
        return answer[1]

    def stop(self, code: int, limit: float) -> None:
        start = time.monotonic()
        self.process.terminate()
        assert self.process.wait(PATIENCE) == code, self.log
        self.reader.join()
        assert time.monotonic() - start < limit + PATIENCE / 2, "SIGTERM took too long"


def check_stuck_engine(vamp: str, model: pathlib.Path) -> None:
    """Requests end, /health says why, and the process ends without its engine."""
    server = Server(vamp, model, *STUCK, "--engine-stall-timeout", "1")
    reason = "the engine has made no progress for 1 s"
    status, text = server.ask()
    assert status == 500 and reason in text, (status, text)
    assert reason in server.wait_for_health(503)
    server.stop(1, STOP_LIMIT)
    assert any("the engine did not stop within" in line for line in server.log), server.log


def check_sigterm_in_the_midst(vamp: str, model: pathlib.Path) -> None:
    server = Server(vamp, model, *STUCK, "--drain-timeout", "0.5")
    with concurrent.futures.ThreadPoolExecutor() as clients:
        answers = [clients.submit(server.ask, stream) for stream in (False, True)]
        while "server_load\":2" not in server.get("/load")[1]:
            time.sleep(0.05)
        server.stop(1, 0.5 + STOP_LIMIT)
        for answer in answers:
            status, text = answer.result()
            assert status == 500 and "shutting down" in text, (status, text)


def check_no_memory(vamp: str, model: pathlib.Path) -> None:
    """Bodies that there is no memory for end their own connections; the rest goes on."""
    server = Server(vamp, model, "--sim-step-ms", "1", "--max-body-bytes", "1GiB")
    assert server.ask()[0] == 200
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    size = 1024 * int(next(line for line in status.splitlines() if line.startswith("VmSize")).split()[1])
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (size + 32 * MIB, size + 32 * MIB))
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{" % (512 * MIB))
            assert b"200" not in client.recv(4096)
        assert server.ask()[0] == 200
    assert server.get("/health")[0] == 200
    assert any("bad_alloc" in line or "out of memory" in line for line in server.log), server.log
    server.stop(0, STOP_LIMIT)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder)
        make_model(model)
        check_stuck_engine(sys.argv[1], model)
        check_sigterm_in_the_midst(sys.argv[1], model)
        check_no_memory(sys.argv[1], model)
    print("requests end with the reason, and so does the process")


if __name__ == "__main__":
    main()
