#!/usr/bin/env python3
"""Our CPU executor beside Hugging Face transformers and llama.cpp, on the same model and threads.

    compare.py [--threads 1] [--rounds 3] [--ours PROGRAM] ...

`make bench-cpu` makes what it needs. The model is the SmolLM2 MoE with 8 experts, top-2, in bf16. The
three take turns, round by round, and the best of each counts: on a shared machine only ratios of one
run mean something. The last line is {"ours":{"prefill":…,"decode1":…,"decode8":…},"hf":{…},
"llama_cpp":{…}} in tokens a second.
"""

import argparse
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "build/peers"
MODEL = ROOT / "models/smollm2-moe-copy8"
GGUF = PEERS / "smollm2-moe-copy8.gguf"
GOALS = {("prefill", "hf"): 1.15, ("decode1", "llama_cpp"): 1.0, ("decode8", "llama_cpp"): 1.3}
PREFILL, CONTEXT, STEPS, REPEAT = 1024, 16, 16, 3


def run(*command: object) -> str:
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True,
                            env=os.environ | {"TOKENIZERS_PARALLELISM": "false"})
    if result.returncode != 0:
        raise SystemExit(f"{command[0]} failed ({result.returncode}):\n{result.stderr[-2000:]}")
    return result.stdout


def make_model(args: argparse.Namespace) -> None:
    if not MODEL.exists():
        print(f"making {MODEL.relative_to(ROOT)}", flush=True)
        run(args.tools_python, ROOT / "tools/make_smollm2_moe.py", "--mode", "copy", "--experts", 8,
            "--top-k", 2, "--out", MODEL)
    if not GGUF.exists():
        print(f"converting it to {GGUF.relative_to(ROOT)}", flush=True)
        part = GGUF.with_suffix(".part")
        run(args.tools_python, ROOT / "bench/peers/make_gguf.py", MODEL, part)
        part.rename(GGUF)


def run_ours(args: argparse.Namespace) -> dict[str, float]:
    out = run(args.ours, MODEL, "--threads", args.threads, "--prefill", PREFILL, "--context",
              CONTEXT, "--steps", STEPS, "--repeat", REPEAT)
    return json.loads(out.splitlines()[-1])


def run_hf(args: argparse.Namespace) -> dict[str, float]:
    out = run(args.hf_python, ROOT / "bench/peers/hf_bench.py", MODEL, "--threads", args.threads,
              "--prefill", PREFILL, "--context", CONTEXT, "--steps", STEPS, "--repeat", REPEAT)
    return json.loads(out.splitlines()[-1])


def run_llama_cpp(args: argparse.Namespace) -> dict[str, float]:
    out = run(PEERS / "llama_bench", GGUF, args.threads, PREFILL, CONTEXT, STEPS, REPEAT)
    return json.loads(out.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ours", default=ROOT / "build/release/bench/model_bench")
    parser.add_argument("--tools-python", default=ROOT / ".venv/bin/python")
    parser.add_argument("--hf-python", default=ROOT / ".venv-golden/bin/python")
    args = parser.parse_args()
    make_model(args)
    engines = {"ours": run_ours, "hf": run_hf, "llama_cpp": run_llama_cpp}
    best: dict[str, dict[str, float]] = {name: {} for name in engines}
    for i in range(args.rounds):
        for name, engine in engines.items():
            figures = engine(args)
            for key in ("prefill", "decode1", "decode8"):
                best[name][key] = max(best[name].get(key, 0.0), round(figures[key], 2))
            print(f"round {i + 1} of {args.rounds}: {name} {json.dumps(figures)}", flush=True)
    for (key, peer), goal in GOALS.items():
        ratio = best["ours"][key] / best[peer][key]
        print(f"{key}: {ratio:.2f} times {peer} (goal {goal})")
    print(json.dumps(best))


if __name__ == "__main__":
    main()
