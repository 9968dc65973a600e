#!/usr/bin/env python3
"""A router's view of `vamp serve`: its KV events, read with pyzmq and msgspec as vLLM's clients read vLLM's.

    kv_events_test.py build/release/vamp

Skipped where the clients are not installed (scripts/python-env.sh clients).
"""

import json
import pathlib
import sys
import tempfile
import urllib.request

import clients_test
from clients_test import KEY, Server, make_model

OTHER_KEY = "other-key"
BLOCK = 16
TOPIC = b"kv@pod@tiny"
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


def decoder(layout: str):
    """vLLM's own structs, of the present (maps) and of before June 2026 (arrays)."""
    import msgspec

    class Event(msgspec.Struct, omit_defaults=True, tag=True, array_like=layout == "array",
                forbid_unknown_fields=True):
        pass

    class BlockStored(Event):
        block_hashes: list[int]
        parent_block_hash: int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None

    class BlockRemoved(Event):
        block_hashes: list[int]
        medium: str | None

    class AllBlocksCleared(Event):
        pass

    class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
        ts: float
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]
        data_parallel_rank: int | None = None

    return msgspec.msgpack.Decoder(Batch)


class Router:
    """Follows one server: a subscription, and the replay for what it missed."""

    def __init__(self, endpoint: str, replay: str, layout: str) -> None:
        import zmq
        self.zmq, self.replay, self.decode = zmq, replay, decoder(layout).decode
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVTIMEO, 500)
        self.socket.subscribe(TOPIC)
        self.socket.connect(endpoint)
        self.batches: dict[int, object] = {}

    def receive(self) -> bool:
        """One message, or False after half a second of silence."""
        try:
            topic, number, payload = self.socket.recv_multipart()
        except self.zmq.Again:
            return False
        assert topic == TOPIC, topic
        self.batches[int.from_bytes(number, "big")] = self.decode(payload)
        return True

    def catch_up(self) -> None:
        """Everything from the beginning on."""
        with self.context.socket(self.zmq.DEALER) as socket:
            socket.setsockopt(self.zmq.RCVTIMEO, 10_000)
            socket.setsockopt(self.zmq.LINGER, 0)
            socket.connect(self.replay)
            socket.send_multipart((b"", (0).to_bytes(8, "big")))
            while True:
                empty, number, payload = socket.recv_multipart()
                assert empty == b"", empty
                if number == END_OF_REPLAY:
                    break
                self.batches.setdefault(int.from_bytes(number, "big"), self.decode(payload))

    def events(self) -> list:
        assert sorted(self.batches) == list(range(len(self.batches))), "a number is missing"
        assert all(batch.data_parallel_rank == 0 for batch in self.batches.values())
        return [event for number in sorted(self.batches) for event in self.batches[number].events]


def cached(events: list) -> dict[int, tuple]:
    """What the device holds after these events: its blocks' tokens and parents by hash."""
    held: dict[int, tuple] = {}
    for event in events:
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            held.clear()
        elif event.medium != "GPU":
            continue
        elif kind == "BlockRemoved":
            for name in event.block_hashes:
                del held[name]
        else:
            assert event.block_size == BLOCK and event.lora_id is None, event
            parent = event.parent_block_hash
            assert parent is None or parent in held, event
            for i, name in enumerate(event.block_hashes):
                assert name not in held, event
                held[name] = (parent, event.token_ids[i * BLOCK:(i + 1) * BLOCK])
                parent = name
    return held


def chain(held: dict[int, tuple], tokens: list[int]) -> list[list[int]]:
    """Every chain of blocks that holds these tokens: one a tenant."""
    chains = [[]]
    for first in range(0, len(tokens) - BLOCK + 1, BLOCK):
        block = tokens[first:first + BLOCK]
        chains = [path + [name] for path in chains for name, (parent, content) in held.items()
                  if parent == (path[-1] if path else None) and content == block]
    return chains


def post(url: str, body: dict, key: str = KEY) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {
        "Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.loads(reply.read() or b"{}")


def check(vamp: str, folder: pathlib.Path, layout: str) -> None:
    endpoint, replay = (f"ipc://{folder}/{name}-{layout}" for name in ("events", "replay"))
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint,
              "replay_endpoint": replay, "topic": TOPIC.decode()}
    if layout == "array":
        config["event_layout"] = "array"
    server = Server(vamp, folder, "--api-key", OTHER_KEY, "--block-size", str(BLOCK),
                    "--kv-events-config", json.dumps(config))
    try:
        server.wait_ready()
        router = Router(endpoint, replay, layout)
        prompt = [3 + i % 400 for i in range(5 * BLOCK + 3)]
        ask = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
        for _ in range(40):  # until the subscription has arrived: then something new is heard of
            ask["prompt"] = prompt = [(token + 7) % 400 + 3 for token in prompt]
            post(server.url + "/v1/completions", ask)
            if router.receive():
                break
        while router.receive():
            pass
        router.catch_up()
        held = cached(router.events())
        assert len(chain(held, prompt)) == 1, "the prompt is not there"
        count = len(router.batches)

        usage = post(server.url + "/v1/completions", ask)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 5 * BLOCK, usage
        post(server.url + "/v1/completions", ask, OTHER_KEY)
        router.catch_up()
        assert len(router.batches) == count + 1, "what was there was told again"
        mine, others = chain(cached(router.events()), prompt)
        assert not set(mine) & set(others), "two tenants share a name"

        post(server.url + "/reset_prefix_cache", {})
        for _ in range(100):
            router.catch_up()
            if type(router.events()[-1]).__name__ == "AllBlocksCleared":
                break
        assert not cached(router.events()), "something is left"
        clients_test.check_shutdown(server)
    finally:
        server.process.kill()


def main() -> None:
    clients_test.reenter_in_venv()
    with tempfile.TemporaryDirectory() as folder:
        make_model(pathlib.Path(folder))
        for layout in ("map", "array"):
            check(sys.argv[1], pathlib.Path(folder), layout)
    print("a router follows the cache in both of vLLM's layouts")


if __name__ == "__main__":
    main()
