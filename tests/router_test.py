#!/usr/bin/env python3
"""sglang-router and vllm-router, each in front of two `vamp serve` of which one dies under load.

    router_test.py build/release/vamp

The answers are greedy, so that both replicas must give the same. Skipped where the routers are not
installed (scripts/python-env.sh clients).
"""

import concurrent.futures
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from clients_test import KEY, Server, make_model, reenter_in_venv

ROUTERS = {"sglang-router": "sglang_router", "vllm-router": "vllm_router"}
STREAMS, PLAIN = 10, 6
LONG, SHORT = 1500, 40  # tokens


@dataclasses.dataclass
class Answer:
    status: int = 0
    text: str = ""
    finished: bool = False
    cached: int = 0


def prompt_of(number: int, turns: int = 1) -> str:
    """Texts with nothing in common but within one number, where the longer ones begin as the shorter."""
    words = [f"{number * 7919 % 10007}-{turn}-{word}" for turn in range(turns) for word in range(20)]
    return f"{number} " + " ".join(words)


def ask(url: str, number: int, tokens: int, turns: int = 1, stream: bool = False,
        begun: threading.Event | None = None, proceed: threading.Event | None = None) -> Answer:
    """One completion. A stream tells of its first piece by `begun` and then waits for `proceed`."""
    answer = Answer()
    body = {"model": "tiny", "prompt": prompt_of(number, turns), "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "stream": stream}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {
        "Authorization": f"Bearer {KEY}", "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            answer.status = reply.status
            if stream:
                read_stream(reply, answer, begun, proceed)
            else:
                take(json.loads(reply.read()), answer)
                answer.finished = True
    except urllib.error.HTTPError as error:
        answer.status = error.code
    except (OSError, ValueError) as error:  # cut
        answer.text += f" [{error!r}]"
    finally:
        if begun:
            begun.set()
    return answer


def read_stream(reply, answer: Answer, begun, proceed) -> None:
    for line in reply:
        data = line.decode().strip().removeprefix("data: ")
        if data == "[DONE]":
            answer.finished = True
        elif data.startswith("{"):
            take(json.loads(data), answer)
            if begun and not begun.is_set():
                begun.set()
                proceed.wait()


def take(chunk: dict, answer: Answer) -> None:
    assert "error" not in chunk, chunk
    answer.text += "".join(choice["text"] for choice in chunk["choices"])
    if "usage" in chunk:
        answer.cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]


class Router:
    def __init__(self, module: str, urls: list[str], log: pathlib.Path, *flags: str) -> None:
        with socket.socket() as free, socket.socket() as other:
            free.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            port, metrics = free.getsockname()[1], other.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{port}", log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"{module}.launch_router", "--host", "127.0.0.1", "--port", str(port),
                 "--prometheus-port", str(metrics), "--worker-urls", *urls, *flags],
                stdout=out, stderr=out)

    def models(self) -> list[str]:
        request = urllib.request.Request(self.url + "/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request) as reply:
            return [model["id"] for model in json.loads(reply.read())["data"]]

    def wait_ready(self) -> None:
        for _ in range(300):
            if self.process.poll() is not None:
                break
            if ask(self.url, 0, 1).status == 200:
                return
            time.sleep(0.1)
        sys.exit("the router does not route:\n" + self.log.read_text()[-4000:])


def ended(replica: Server) -> float:
    """Requests that it has answered."""
    with urllib.request.urlopen(replica.url + "/metrics") as reply:
        return sum(float(line.split()[-1]) for line in reply.read().decode().splitlines()
                   if line.startswith("vllm:request_success_total"))


def under_way(replica: Server) -> int:
    with urllib.request.urlopen(replica.url + "/load") as reply:
        return json.loads(reply.read())["server_load"]


def place_of(replicas: list[Server], request) -> tuple[Server, Answer]:
    """The only replica that answers a request more when this one has been answered."""
    before = [ended(replica) for replica in replicas]
    answer = request()
    for _ in range(100):
        places = [replica for replica, count in zip(replicas, before) if ended(replica) > count]
        if places:
            assert len(places) == 1
            return places[0], answer
        time.sleep(0.01)
    raise AssertionError(f"no replica has answered: {answer}")


def check_same_prefix_same_replica(url: str, replicas: list[Server]) -> None:
    """Two conversations that begin at once, on different replicas, go on where they began."""
    begun, proceed = threading.Event(), threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        held = pool.submit(ask, url, 101, LONG, 2, True, begun, proceed)
        begun.wait()
        places = {101: next(replica for replica in replicas if under_way(replica))}
        places[102], _ = place_of(replicas, lambda: ask(url, 102, SHORT, 2))
        proceed.set()
        assert held.result().finished
    assert places[101] != places[102], "both conversations began on one replica"
    cached = {101: 0, 102: 0}
    for turns in (3, 4, 5):
        for number, began in places.items():
            place, answer = place_of(replicas, lambda: ask(url, number, SHORT, turns))
            assert place == began, f"conversation {number} was moved: {answer}"
            assert answer.cached > cached[number], f"conversation {number} found nothing in the cache: {answer}"
            cached[number] = answer.cached


def check_restart(url: str, replicas: list[Server], start, expected: dict) -> None:
    """Each replica is stopped as an operator does it, and started again, under load: no request fails."""
    over = threading.Event()

    def load(number: int) -> None:
        for turn in itertools.count():
            if over.is_set():
                return
            answer = ask(url, number, SHORT, stream=turn % 2 == 0)
            assert answer.finished and answer.text == expected[number, SHORT], f"after {turn} requests: {answer}"

    with concurrent.futures.ThreadPoolExecutor(PLAIN) as pool:
        jobs = [pool.submit(load, number) for number in range(PLAIN)]
        try:
            for i, replica in enumerate(replicas):
                replica.process.terminate()
                assert replica.process.wait(timeout=60) == 0, "".join(replica.log)
                replicas[i] = start(port=int(replica.url.split(":")[-1]))
                replicas[i].wait_ready()
                for number in range(1000, 1600):  # until the router has seen that it is back
                    ask(url, number, 1)
                    if ended(replicas[i]) > 0:
                        break
                    time.sleep(0.05)
                assert ended(replicas[i]) > 0, "a replica that came back is not used"
        finally:
            over.set()
        for job in jobs:
            job.result()


def check_death(url: str, survivor: Server, victim: Server, expected: dict) -> None:
    """Streams that have begun on both, and plain requests, when one replica is killed."""
    begun, proceed = [threading.Event() for _ in range(STREAMS)], threading.Event()
    with concurrent.futures.ThreadPoolExecutor(STREAMS + PLAIN) as pool:
        streams = [pool.submit(ask, url, number, LONG, 1, True, begun[number], proceed)
                   for number in range(STREAMS)]
        plain = [pool.submit(ask, url, number, SHORT) for number in range(PLAIN)]
        for event in begun:
            event.wait()
        doomed = under_way(victim)
        victim.process.kill()
        victim.process.wait()
        later = [pool.submit(ask, url, number, SHORT) for number in range(PLAIN)]
        proceed.set()
        streams, plain, later = ([job.result() for job in jobs] for jobs in (streams, plain, later))
    cut = sum(not answer.finished for answer in streams)
    failed = sum(not answer.finished for answer in plain)
    assert 0 < cut < STREAMS, f"{cut} of {STREAMS} streams were on the replica that died"
    assert cut + failed <= doomed, f"{cut + failed} requests failed; {doomed} were on the replica that died"
    assert all(answer.finished for answer in later), f"a request after the death failed: {later}"
    for answers, tokens in ((streams, LONG), (plain, SHORT), (later, SHORT)):
        for number, answer in enumerate(answers):
            assert not answer.finished or answer.text == expected[number, tokens], f"{number} is wrong: {answer}"
    count = ended(survivor)
    for number in range(PLAIN):
        answer = ask(url, number, SHORT)
        assert answer.finished and answer.text == expected[number, SHORT], f"a later request failed: {answer}"
    assert ended(survivor) >= count + PLAIN


def check_events(url: str, replicas: list[Server]) -> None:
    """Requests go to where their prefix is cached, though it came there past the router: by KV events,
    which may be on their way yet. Without them, not as many could be right one after the other."""
    right = 0
    for number in range(200, 260):
        home = replicas[number % 2]
        ask(home.url, number, 1, 2)
        time.sleep(0.1)
        place, answer = place_of(replicas, lambda: ask(url, number, 1, 3))
        right = right + 1 if place == home and answer.cached > 0 else 0
        if right == 6:
            return
    raise AssertionError("the router does not follow the KV events")


def check(module: str, vamp: str, folder: pathlib.Path, policy: str) -> None:
    replicas, router = [], None
    start = functools.partial(Server, vamp, folder, "--kv-events-config", json.dumps(
        {"enable_kv_cache_events": True, "endpoint": "tcp://*:0"}))
    # A replica that fails twice is left out within the retries of one request, and tried again soon.
    router_flags = ["--policy", policy, "--cb-failure-threshold", "2",
                    "--cb-timeout-duration-secs", "1", "--health-check-interval-secs", "1"]
    try:
        for _ in range(2):
            replicas.append(start())
        for replica in replicas:
            replica.wait_ready()
            if policy == "kv_aware":
                port = re.search(r"KV events on tcp://0.0.0.0:(\d+)", "".join(replica.log)).group(1)
                router_flags += ["--kv-event-source", f"{replica.url}=tcp://127.0.0.1:{port}"]
        if policy == "kv_aware":
            router_flags += ["--kv-event-model", "tiny", "--kv-event-block-size", "16"]
        router = Router(module, [replica.url for replica in replicas], folder / "router.log", *router_flags)
        router.wait_ready()
        if policy == "kv_aware":
            check_events(router.url, replicas)
        else:
            assert router.models() == ["tiny"], router.models()
            expected = {(number, tokens): ask(replicas[0].url, number, tokens).text
                        for number in range(STREAMS) for tokens in (SHORT, LONG)}
            check_same_prefix_same_replica(router.url, replicas)
            check_restart(router.url, replicas, start, expected)
            check_death(router.url, *replicas, expected)
    except BaseException:
        if router:
            print(router.log.read_text()[-4000:])
        raise
    finally:
        for process in [replica.process for replica in replicas] + ([router.process] if router else []):
            process.kill()


def main() -> None:
    reenter_in_venv()
    with tempfile.TemporaryDirectory() as folder:
        make_model(pathlib.Path(folder))
        for name, module in ROUTERS.items():
            check(module, sys.argv[1], pathlib.Path(folder), "cache_aware")
            print(f"{name}: conversations stay together, restarts fail no request, and a dead replica fails what "
                  "was under way on it alone")
        check("vllm_router", sys.argv[1], pathlib.Path(folder), "kv_aware")
        print("vllm-router: requests go to where KV events say that their prefix is")


if __name__ == "__main__":
    main()
