#!/usr/bin/env python3
"""Make the golden checkpoints in tests/golden anew and compare them with those committed.

    tools/make_golden.py            makes all in a temporary folder and compares; exit code 1 if any differs
    tools/make_golden.py --write    writes them into tests/golden instead

`make golden` runs it with the pinned packages. Greedy tokens must be the same, logits within 1e-4
(other processors round otherwise), weights and configs byte for byte.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import make_random_checkpoint
import transformers

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
LLAMA3 = ('rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, '
          '"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}')
YARN = ('rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, '
        '"original_max_position_embeddings": 64}')
LINEAR = 'rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}'
# Each covers something that the others do not; every name says what.
CHECKPOINTS: dict[str, list[str]] = {
    "mixtral": ["mixtral"],
    "mixtral-llama3-tied-sharded": ["mixtral", "--layers", "3", "--shard", "150KB", "--set", LLAMA3,
                                    "--set", "tie_word_embeddings=true"],
    "qwen3_moe": ["qwen3_moe", "--experts", "16", "--set", "moe_intermediate_size=16"],
    "qwen3_moe-dense-layers": ["qwen3_moe", "--layers", "6", "--set", "decoder_sparse_step=2",
                               "--set", "mlp_only_layers=[3]", "--set", "norm_topk_prob=false"],
    "qwen3_moe-yarn-bias": ["qwen3_moe", "--layers", "2", "--set", YARN,
                            "--set", "attention_bias=true"],
    "qwen3_moe-linear-tied-f16": ["qwen3_moe", "--layers", "2", "--dtype", "float16",
                                  "--set", LINEAR, "--set", "tie_word_embeddings=true"],
    "qwen3_next": ["qwen3_next"],
}


def differences(made: pathlib.Path, kept: pathlib.Path) -> list[str]:
    """What differs between two checkpoints, in words."""
    names = {f.name for folder in (made, kept) for f in folder.iterdir()}
    faults = [f"{name} exists on one side only" for name in sorted(names)
              if not ((made / name).exists() and (kept / name).exists())]
    faults += [f"{name} differs" for name in sorted(names - {"golden.json"})
               if not faults and (made / name).read_bytes() != (kept / name).read_bytes()]
    if faults:
        return faults
    new, old = (json.loads((folder / "golden.json").read_text()) for folder in (made, kept))
    for i, (a, b) in enumerate(zip(new["cases"], old["cases"], strict=True)):
        if (a["prompt"], a["greedy"]) != (b["prompt"], b["greedy"]):
            faults.append(f"golden.json: other tokens in case {i}")
        for x, y in zip(a["logits"], b["logits"], strict=True):
            values = dict(zip(x["ids"], x["values"]))
            worst = max(abs(values.get(t, v + 1) - v) for t, v in zip(y["ids"], y["values"]))
            if worst > 1e-4:
                faults.append(f"golden.json: case {i}, position {y['position']}: logits differ by "
                              f"{worst:.2g}")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write into tests/golden")
    parser.add_argument("names", nargs="*", default=list(CHECKPOINTS), help="only these")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.names:
            out = (GOLDEN if args.write else pathlib.Path(temporary)) / name
            options = [*CHECKPOINTS[name], "--out", str(out)]
            make_random_checkpoint.make_checkpoint(
                make_random_checkpoint.argument_parser().parse_args(options))
            for fault in [] if args.write else differences(out, GOLDEN / name):
                failed = True
                print(f"{name}: {fault}", file=sys.stderr)
    if not args.write:
        print("golden checkpoints differ" if failed else
              f"{len(args.names)} golden checkpoints: as committed")
    sys.exit(failed)


if __name__ == "__main__":
    main()
