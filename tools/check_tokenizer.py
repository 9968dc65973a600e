#!/usr/bin/env python3
"""Compare our tokenizer with Hugging Face's `tokenizers` on mixed text, id by id.

    pip install -r tools/requirements-text.txt
    tools/check_tokenizer.py --characters 5000000 MODEL_FOLDER [MODEL_FOLDER ...]

Each folder holds a tokenizer.json. The text is made from a seed: source files of this repository
and of Python, random words of every script, every character once, emoji, spaces of all kinds,
numbers, long runs without a space, the tokenizer's own special tokens, and broken UTF-8. Ids are
compared both ways (encode, decode, and decoding token by token). With --bench the speed of both on
one thread is printed as well. The last line is one JSON object; a difference ends it with status 1.
"""

import argparse
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
import unicodedata
from collections.abc import Iterator

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from tokenizers import Tokenizer  # noqa: E402  (reads the variable when imported)

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHUNK = 4000  # characters of one text
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u1680", "\u180e", "\u2003", "\u2028", "\u3000",
          "\u200b", "\u0085", "\x0b", "\x0c", " \n", "\n ", "\n\n\n", "        "]
SCRIPTS = [(0x41, 0x7B), (0xC0, 0x250), (0x370, 0x400), (0x400, 0x530), (0x531, 0x590),
           (0x5D0, 0x5F5), (0x600, 0x700), (0x700, 0x750), (0x900, 0x980), (0x980, 0xA00),
           (0xA00, 0xB00), (0xB80, 0xC00), (0xC00, 0xD00), (0xD00, 0xD80), (0xD80, 0xE00),
           (0xE00, 0xE60), (0xE80, 0xF00), (0xF00, 0x1000), (0x1000, 0x10A0), (0x10A0, 0x1100),
           (0x1100, 0x1200), (0x1200, 0x1380), (0x13A0, 0x1400), (0x1780, 0x1800),
           (0x1800, 0x18B0), (0x1E00, 0x2000), (0x2070, 0x2200), (0x2200, 0x2600), (0x3040, 0x3100),
           (0x3130, 0x3190), (0x4E00, 0x9FA6), (0xAC00, 0xD7A4), (0xFB00, 0xFB50), (0xFF00, 0xFFF0),
           (0x10330, 0x1034B), (0x12000, 0x12400), (0x1D400, 0x1D800), (0x20000, 0x20100)]
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "1️⃣", "☕", "❤️", "🧑🏿‍🚀", "🫠", "‍", "️"]
CONTRACTIONS = ["I'm", "don't", "we'll", "YOU'RE", "it'S", "they'Ve", "o'clock", "'tis", "x'ſ"]


def source_files() -> list[pathlib.Path]:
    folders = [ROOT / "src", ROOT / "tools", pathlib.Path(sysconfig.get_path("stdlib"))]
    files = [f for folder in folders for pattern in ("*.cc", "*.h", "*.py")
             for f in sorted(folder.rglob(pattern)) if "site-packages" not in f.parts]
    return files


def word(rng: random.Random) -> str:
    low, high = rng.choice(SCRIPTS)
    letters = (chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 12)))
    return "".join(c for c in letters if unicodedata.category(c) not in ("Cn", "Cs"))


def mixture(rng: random.Random, special: list[str]) -> str:
    kinds = [lambda: word(rng), lambda: rng.choice(EMOJI), lambda: rng.choice(CONTRACTIONS),
             lambda: rng.choice(SPACES), lambda: str(rng.randrange(10 ** rng.randint(1, 20))),
             lambda: "".join(rng.choices("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", k=rng.randint(1, 8))),
             lambda: rng.choice(special) if special else "<s>",
             lambda: rng.choice(["e\u0301", "A\u030a", "\u1100\u1161", "\ufb01", "①", "Å", "ﷺ"])]
    weights = [12, 2, 2, 6, 2, 2, 1, 1]
    parts = []
    size = 0
    while size < CHUNK:
        part = rng.choices(kinds, weights)[0]()
        parts.append(part)
        if rng.random() < 0.5:
            parts.append(" ")
        size += len(part) + 1
    return "".join(parts)


def long_run(rng: random.Random) -> str:
    low, high = rng.choice(SCRIPTS)
    letters = [chr(c) for c in range(low, high) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    few = rng.sample(letters, min(len(letters), rng.choice([1, 2, 3, 50])))
    return "".join(rng.choices(few, k=CHUNK))


def broken(rng: random.Random, text: str) -> bytes:
    data = bytearray(text.encode("utf-8"))
    for _ in range(max(1, len(data) // 50)):
        at = rng.randrange(len(data))
        if rng.random() < 0.5:
            data[at] = rng.randrange(256)
        else:
            del data[at]
    return bytes(data)


def every_character() -> Iterator[bytes]:
    """Each character of Unicode between letters, digits and spaces, a few hundred to a text."""
    known = [chr(c) for c in range(0x110000)
             if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co")]
    for begin in range(0, len(known), 400):
        part = known[begin:begin + 400]
        yield "".join(f"a{c}b {c} 1{c}{c}!{c}\n" for c in part).encode("utf-8")


def texts(characters: int, seed: int, special: list[str]) -> Iterator[bytes]:
    rng = random.Random(seed)
    files = source_files()
    yield from every_character()
    made = 0
    while made < characters:
        kind = rng.random()
        if kind < 0.45:
            source = rng.choice(files).read_bytes()
            begin = rng.randrange(max(1, len(source) - CHUNK))
            data = source[begin:begin + CHUNK]
        elif kind < 0.85:
            data = mixture(rng, special).encode("utf-8")
        elif kind < 0.92:
            data = long_run(rng).encode("utf-8")
        else:
            data = broken(rng, mixture(rng, special))
        made += len(data.decode("utf-8", "replace"))
        yield data


class Ours:
    """bench/tokenizer_pipe: see there for the protocol."""

    def __init__(self, binary: pathlib.Path, folder: pathlib.Path) -> None:
        self._process = subprocess.Popen([binary, folder], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE)

    def _ask(self, kind: bytes, count: int, payload: bytes, item: int) -> bytes:
        self._process.stdin.write(kind + struct.pack("<I", count) + payload)
        self._process.stdin.flush()
        header = self._process.stdout.read(4)
        if len(header) < 4:
            raise SystemExit(f"tokenizer_pipe ended with status {self._process.wait()}")
        return self._process.stdout.read(struct.unpack("<I", header)[0] * item)

    def encode(self, text: bytes, special: bool) -> list[int]:
        answer = self._ask(b"E" if special else b"e", len(text), text, 4)
        return list(struct.unpack(f"<{len(answer) // 4}i", answer))

    def decode(self, ids: list[int], skip: bool, stream: bool) -> str:
        kind = {(False, False): b"D", (True, False): b"d", (False, True): b"S", (True, True): b"s"}
        return self._ask(kind[skip, stream], len(ids), struct.pack(f"<{len(ids)}i", *ids),
                         1).decode("utf-8")


def compare(ours: Ours, theirs: Tokenizer, args: argparse.Namespace) -> dict[str, int]:
    special = [t.content for t in theirs.get_added_tokens_decoder().values()]
    rng = random.Random(args.seed)
    counts = {"characters": 0, "tokens": 0, "texts": 0, "encode_differs": 0, "decode_differs": 0}
    vocabulary = theirs.get_vocab_size()

    def differs(kind: str, what: object, a: object, b: object) -> None:
        counts[kind] += 1
        if counts[kind] <= args.show:
            print(f"{kind}: {what!r}\n  ours   {a!r}\n  theirs {b!r}")

    for data in texts(args.characters, args.seed, special):
        text = data.decode("utf-8", "replace")
        counts["texts"] += 1
        counts["characters"] += len(text)
        expected = theirs.encode(text, add_special_tokens=False).ids
        counts["tokens"] += len(expected)
        got = ours.encode(data, False)
        if got != expected:
            at = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b),
                      min(len(got), len(expected)))
            near = theirs.decode(expected[max(0, at - 3):at + 4], skip_special_tokens=False)
            differs("encode_differs", near, got[at:at + 8], expected[at:at + 8])
        if rng.random() < 0.2:
            skip = rng.random() < 0.5
            ids = expected if rng.random() < 0.5 else rng.choices(range(vocabulary), k=200)
            wanted = theirs.decode(ids, skip_special_tokens=skip)
            if ours.decode(ids, skip, False) != wanted:
                differs("decode_differs", ids[:20], ours.decode(ids, skip, False)[:80], wanted[:80])
            if ids is expected and ours.decode(ids, skip, True) != wanted:
                differs("decode_differs", ids[:20], ours.decode(ids, skip, True)[:80], wanted[:80])
    for text in ("", "a", "Hello world", " x"):
        expected = theirs.encode(text).ids
        if ours.encode(text.encode(), True) != expected:
            differs("encode_differs", text, ours.encode(text.encode(), True), expected)
    return counts


def bench(binary: pathlib.Path, folder: pathlib.Path, theirs: Tokenizer,
          megabytes: int) -> dict[str, float]:
    """Both on one thread over source code and prose, text after text."""
    parts: list[str] = []
    size = 0
    for file in source_files():
        parts.append(file.read_text(encoding="utf-8", errors="replace"))
        size += len(parts[-1])
        if size > megabytes * 1_000_000:
            break
    text = "".join(parts)
    best = min(timed(lambda: [theirs.encode(p, add_special_tokens=False) for p in parts])
               for _ in range(2))
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(text.encode("utf-8"))
        file.flush()
        ours = json.loads(subprocess.check_output([binary, folder, file.name]).splitlines()[-1])
    hf = len(text.encode("utf-8")) / 1e6 / best
    return {"ours_mb_s": ours["encode_mb_s"], "hf_mb_s": hf, "ratio": ours["encode_mb_s"] / hf,
            "ours_mtoken_s": ours["encode_mtoken_s"], "load_s": ours["load_s"]}


def timed(work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--characters", type=int, default=5_000_000, help="per tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5, help="differences printed per kind")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--bench", type=int, default=0, metavar="MB", help="also compare the speed")
    args = parser.parse_args()
    result = {}
    for folder in args.folders:
        theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
        counts = compare(Ours(args.build / "bench/tokenizer_pipe", folder), theirs, args)
        if args.bench:
            counts |= bench(args.build / "bench/tokenizer_bench", folder, theirs, args.bench)
        print(folder.name, counts, flush=True)
        result[folder.name] = counts
    print(json.dumps(result))
    sys.exit(any(c["encode_differs"] or c["decode_differs"] for c in result.values()))


if __name__ == "__main__":
    main()
