#!/usr/bin/env python3
"""A real Prometheus scrapes `vamp serve` with deploy/prometheus: the dashboard's expressions and the
alerts have something to show, and a server that dies is noticed.

    prometheus_test.py build/release/vamp

Skipped where there is no prometheus (Debian's package prometheus).
"""

import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from clients_test import KEY, ROOT, SKIPPED, Server, make_model

# The test's own pace; deploy/prometheus/prometheus.yml says 15 s.
INTERVAL = "1s"
WINDOW = "30s"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Prometheus:
    def __init__(self, folder: pathlib.Path, target: str) -> None:
        deploy = ROOT / "deploy/prometheus"
        config = (deploy / "prometheus.yml").read_text()
        assert "localhost:8000" in config and "scrape_interval: 15s" in config, config
        config = config.replace("localhost:8000", target).replace(
            "scrape_interval: 15s", f"scrape_interval: {INTERVAL}\n  evaluation_interval: {INTERVAL}")
        (folder / "prometheus.yml").write_text(config)
        shutil.copy(deploy / "alerts.yml", folder)
        self.address, self.log = f"127.0.0.1:{free_port()}", folder / "prometheus.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={self.address}"], stdout=log, stderr=log)

    def get(self, path: str, **query: str):
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}") as reply:
            return json.loads(reply.read())["data"]

    def query(self, expression: str) -> list:
        try:
            return self.get("query", query=expression)["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is not ready
                raise
            raise AssertionError(f"{expression}: {error.read().decode()}") from None

    def wait_for(self, what: str, condition) -> None:
        for _ in range(600):
            try:
                if condition():
                    return
            except OSError:  # it does not listen, or is not ready
                pass
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)
        raise AssertionError(f"{what} did not come:\n{self.log.read_text()[-3000:]}")

    def rules(self) -> list[dict]:
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]


def complete(url: str, prompt: str) -> None:
    body = json.dumps({"prompt": prompt, "max_tokens": 8, "ignore_eos": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(
            url + "/v1/completions", body, {"Authorization": f"Bearer {KEY}"})) as reply:
        reply.read()


def check(prometheus: Prometheus, server: Server) -> int:
    # Two scrapes with requests between them: rates need both.
    scraped = 'vllm:request_success_total{finished_reason="length"}'
    complete(server.url, "hello")
    prometheus.wait_for("a first scrape", lambda: prometheus.query(f"{scraped} == 1"))
    complete(server.url, "hello")
    complete(server.url, "another")
    prometheus.wait_for("a second scrape", lambda: prometheus.query(f"{scraped} == 3"))
    targets = prometheus.get("targets")["activeTargets"]
    assert [target["health"] for target in targets] == ["up"], targets

    dashboard = json.loads((ROOT / "deploy/grafana/vamp.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    for template in expressions:
        expression = template.replace("$instance", ".*").replace("$__rate_interval", WINDOW)
        for metric in set(re.findall(r"(?:vllm|vamp):\w+", expression)):
            assert prometheus.query(metric), f"the dashboard asks for {metric}, which has no series"
        assert prometheus.query(expression), f"the dashboard has nothing to show for {template}"

    names = re.findall(r"- alert: (\w+)", (ROOT / "deploy/prometheus/alerts.yml").read_text())
    prometheus.wait_for("the rules' evaluation",
                        lambda: {rule["health"] for rule in prometheus.rules()} == {"ok"})
    rules = prometheus.rules()
    assert [rule["name"] for rule in rules] == names, rules
    assert all(rule["state"] == "inactive" for rule in rules), rules
    return len(expressions)


def main() -> None:
    if not shutil.which("prometheus"):
        print("SKIPPED: there is no prometheus: apt-get install prometheus")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        make_model(folder)
        server = Server(sys.argv[1], folder)
        prometheus = None
        try:
            server.wait_ready()
            prometheus = Prometheus(folder, server.url.removeprefix("http://"))
            expressions = check(prometheus, server)
            server.process.kill()
            prometheus.wait_for("VampDown", lambda: any(
                rule["name"] == "VampDown" and rule["state"] == "pending" for rule in prometheus.rules()))
        finally:
            server.process.kill()
            if prometheus:
                prometheus.process.kill()
                prometheus.process.wait()
    print(f"Prometheus has series for all {expressions} expressions of the dashboard, and its alerts work")


if __name__ == "__main__":
    main()
