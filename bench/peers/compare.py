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
    gguf = PEERS / "smollm2-moe-copy8.gguf"
    if not gguf.exists():
        print(f"converting it to {gguf.relative_to(ROOT)}", flush=True)
        source = next(PEERS.glob("llama_cpp_python-*/vendor/llama.cpp"))
        part = gguf.with_suffix(".part")
        run(args.hf_python, source / "convert_hf_to_gguf.py", MODEL, "--outtype", "bf16",
            "--outfile", part)
        part.rename(gguf)


def run_ours(args: argparse.Namespace) -> dict[str, float]:
    out = run(args.ours, MODEL, "--threads", args.threads, "--prefill", PREFILL, "--context",
              CONTEXT, "--steps", STEPS, "--repeat", REPEAT)
    return json.loads(out.splitlines()[-1])


def run_hf(args: argparse.Namespace) -> dict[str, float]:
    out = run(args.hf_python, ROOT / "bench/peers/hf_bench.py", MODEL, "--threads", args.threads,
              "--prefill", PREFILL, "--context", CONTEXT, "--steps", STEPS, "--repeat", REPEAT)
    return json.loads(out.splitlines()[-1])


def run_llama_cpp(args: argparse.Namespace) -> dict[str, float]:
    """llama-bench for one sequence, its sibling for eight; both print a JSON object a line."""
    model = ["-m", PEERS / "smollm2-moe-copy8.gguf", "-t", args.threads]
    single = run(PEERS / "llama/bin/llama-bench", *model, "-p", PREFILL, "-n", STEPS, "-r", REPEAT,
                 "-o", "jsonl")
    tests = [json.loads(line) for line in single.splitlines() if line.startswith("{")]
    prefill = next(t for t in tests if t["n_prompt"] and not t["n_gen"])
    decode = next(t for t in tests if t["n_gen"])
    batch8 = 0.0
    for _ in range(REPEAT):
        batched = run(PEERS / "llama/bin/llama-batched-bench", *model, "-tb", args.threads, "-c",
                      8 * 2 * (CONTEXT + STEPS), "-npp", CONTEXT, "-ntg", STEPS, "-npl", 8,
                      "--output-format", "jsonl")
        lines = [json.loads(line) for line in batched.splitlines() if line.startswith("{")]
        batch8 = max(batch8, lines[-1]["speed_tg"])
    return {"prefill": max(prefill["samples_ts"]), "decode1": max(decode["samples_ts"]),
            "decode8": batch8}


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
