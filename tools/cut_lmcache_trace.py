#!/usr/bin/env python3
"""Cut an LMCache agent trace (a folder of JSON lines) down to a few sessions of real text.

    cut_lmcache_trace.py miniswe --out lmcache_miniswe.jsonl.gz

A turn that adds less than MIN_CHARS is merged into the next, so that every turn brings a tool's answer
worth reading; long pieces are cut. Sessions with too few turns left are dropped.
"""

import argparse
import gzip
import json
import pathlib

MIN_CHARS, MAX_CHARS, FIRST_CHARS = 360, 2000, 5000
MIN_TURNS, MAX_TURNS = 8, 12


def cut_session(rows: list[dict]) -> list[dict]:
    rows = sorted(rows, key=lambda row: row["timestamp"])
    text = rows[0]["input"][:FIRST_CHARS]
    kept = [{**rows[0], "input": text}]
    begin = len(rows[0]["input"])
    for row in rows[1:]:
        added = row["input"][begin:]
        if len(added) < MIN_CHARS:
            continue
        begin = len(row["input"])
        text += added[:MAX_CHARS]
        kept.append({**row, "input": text})
    return kept[:MAX_TURNS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    rows = []
    for file in sorted(args.folder.glob("*.jsonl")):
        session = cut_session([json.loads(line) for line in file.read_text().splitlines()])
        if len(session) >= MIN_TURNS:
            rows += session
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    args.out.write_bytes(gzip.compress(data.encode(), 9, mtime=0))
    print(f"{len({row['session_id'] for row in rows})} sessions, {len(rows)} turns, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
