#!/usr/bin/env python3
"""The dashboard of `vamp serve` in headless Chromium, as people see it: on a desk and on a phone, light and dark.

    dashboard_test.py build/release/vamp [FOLDER]     # screenshots go into FOLDER

No message on the console, nothing wider than the window, every panel with its content when there was traffic,
and with words that say so when there was none. Skipped where there is no Chromium (Debian: chromium).
"""

import base64
import concurrent.futures
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from clients_test import SKIPPED, make_model

SIZES = {"desktop": (1400, 900), "phone": (390, 844)}
PATIENCE = 60  # seconds

# What each panel shows: its title, the words in place of content, and how much is drawn.
PANELS = """
[...document.querySelectorAll('.card:not([hidden])')].map((card) => {
  let before = card;
  while (before && before.tagName !== 'H2') before = before.previousElementSibling;
  return {
    title: (card.querySelector('h3') || before).textContent,
    none: [...card.querySelectorAll('.none')].map((node) => node.textContent).join(),
    figure: card.querySelector('.figure')?.textContent ?? null,
    drawn: card.querySelectorAll('svg path[d^=M], svg rect[rx], tbody tr').length,
  };
})"""
# Whatever reaches beyond the window's sides, unless it scrolls in its own box.
TOO_WIDE = """
[...document.querySelectorAll('body *')].filter((node) => {
  const box = node.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 1 || box.left < -1) && !node.closest('.scroll, .tip, clipPath');
}).map((node) => node.outerHTML.slice(0, 200))
.concat(document.documentElement.scrollWidth > innerWidth ? ['the page'] : [])"""
# Letters over letters, or cut off by their own box.
CLIPPED = """
[...document.querySelectorAll('h1, h2, h3, p, .figure, .chip, th, td, button')].filter((node) =>
  node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== 'inline' && !node.closest('.scroll'))
.map((node) => node.outerHTML.slice(0, 200))"""

# Labels of charts over one another.
OVERLAPPING = """
[...document.querySelectorAll('svg')].flatMap((chart) => {
  const labels = [...chart.querySelectorAll('text')].map((node) => [node.getBoundingClientRect(), node.textContent]);
  return labels.flatMap(([a, text], i) => labels.slice(i + 1).filter(([b]) =>
    a.left < b.right + 2 && b.left < a.right + 2 && a.top < b.bottom - 4 && b.top < a.bottom - 4).map(([, other]) => text + ' over ' + other));
})"""


class Browser:
    """Headless Chromium, told through the DevTools protocol over a pair of pipes."""

    def __init__(self, program: str, profile: str) -> None:
        def high(fd: int) -> int:  # away from the numbers 3 and 4 that Chromium expects
            copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
            os.close(fd)
            return copy
        to_read, to = map(high, os.pipe())
        answers, from_write = map(high, os.pipe())

        def give_pipes() -> None:
            os.dup2(to_read, 3)
            os.dup2(from_write, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", "--no-first-run", f"--user-data-dir={profile}", "--remote-debugging-pipe"],
            preexec_fn=give_pipes, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.to, self.answers = os.fdopen(to, "wb", 0), os.fdopen(answers, "rb")
        self.calls, self.session = 0, None
        self.console: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def _receive(self) -> dict:
        message = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            if not byte:
                sys.exit("Chromium has ended")
            message += byte
        return json.loads(message)

    def call(self, method: str, **params) -> dict:
        self.calls += 1
        ask = {"id": self.calls, "method": method, "params": params}
        if self.session:
            ask["sessionId"] = self.session
        self.to.write(json.dumps(ask).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self.calls:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            if message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                self.console.append(json.dumps(message["params"]))

    def value(self, expression: str):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def show(self, url: str, size: tuple[int, int], dark: bool) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1,
                  mobile=size[0] < 500)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.console.clear()
        self.call("Page.navigate", url=url)

    def wait_for(self, expression: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.value(expression):
            assert time.monotonic() < end, f"never true: {expression}\n" + "\n".join(self.console)
            time.sleep(0.1)

    def screenshot(self, path: pathlib.Path) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


class Server:
    """`vamp serve` with so little memory that decisions are needed."""

    def __init__(self, vamp: str, model: pathlib.Path) -> None:
        self.process = subprocess.Popen(
            [vamp, "serve", str(model), "--port", "0", "--served-model-name", "tiny", "--executor", "sim",
             "--sim-step-ms", "5", "--kv-cache-tokens", "512", "--kv-offloading-size", "1MiB", "--max-model-len", "400"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline().split()[-1])}"
        end = time.monotonic() + PATIENCE
        while True:
            try:
                urllib.request.urlopen(self.url + "/health")
                return
            except urllib.error.HTTPError:  # 503: still loading
                assert time.monotonic() < end
                time.sleep(0.1)

    def ask(self, number: int) -> None:
        body = {"messages": [{"role": "user", "content": f"question {number} " * 12}], "max_tokens": 100,
                "ignore_eos": True}
        urllib.request.urlopen(urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode()))

    def close(self) -> None:
        self.process.terminate()
        assert self.process.wait(timeout=PATIENCE) == 0


def check_idle(panels: list[dict]) -> None:
    for panel in panels:
        shown = panel["none"] or panel["figure"] or panel["drawn"]
        assert shown, f"an empty panel without a word: {panel}"
    words = {panel["title"]: panel["none"] for panel in panels}
    assert words["Requests"] and words["Decisions"] and words["Time to first token"], words


def check_busy(panels: list[dict]) -> None:
    for panel in panels:
        assert not panel["none"], f"nothing to see in spite of traffic: {panel}"
        assert panel["drawn"] or panel["figure"] not in (None, "", "–"), f"an empty panel: {panel}"


def look(browser: Browser, url: str, busy: bool, shots: pathlib.Path) -> None:
    for name, size in SIZES.items():
        for dark in (False, True):
            where = f"{'busy' if busy else 'idle'}-{name}-{'dark' if dark else 'light'}"
            browser.show(url + "/dashboard", size, dark)
            browser.wait_for("document.readyState === 'complete' && (columns.second || []).length >= 2")
            if busy:
                browser.wait_for("decisionList.length && requestList.length && lastKnown('tpot_p50') !== null")
            browser.value("redraw()")
            browser.screenshot(shots / f"{where}.png")
            (check_busy if busy else check_idle)(browser.value(PANELS))
            assert browser.value("document.documentElement.dataset.theme") == ("dark" if dark else "light"), where
            for expression in (TOO_WIDE, CLIPPED, OVERLAPPING):
                found = browser.value(expression)
                assert not found, f"{where}: " + "\n".join(found)
            ends = browser.value("[...document.querySelectorAll('svg')].map((chart) => [...chart.querySelectorAll('text')].pop().textContent)")
            assert all(end == "now" or end.endswith(" ago") for end in ends), ends
            assert not browser.console, f"{where}: " + "\n".join(browser.console)


def main() -> None:
    program = shutil.which("chromium")
    if not program:
        print("SKIPPED: there is no chromium: apt-get install chromium")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        shots = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else folder)
        shots.mkdir(exist_ok=True)
        model = pathlib.Path(folder) / "model"
        model.mkdir()
        make_model(model)
        server = Server(sys.argv[1], model)
        browser = Browser(program, folder + "/profile")
        try:
            look(browser, server.url, False, shots)
            with concurrent.futures.ThreadPoolExecutor(8) as clients:
                list(clients.map(server.ask, range(40)))
            look(browser, server.url, True, shots)
        finally:
            browser.process.kill()
            browser.process.wait()
            server.close()
    print("the dashboard shows what it should, at every size, and complains of nothing")


if __name__ == "__main__":
    main()
