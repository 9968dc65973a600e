#!/usr/bin/env python3
"""Speed of Hugging Face transformers on the CPU: prefill of one prompt, decode at batch 1 and 8.

    hf_bench.py MODEL [--threads 1] [--prefill 1024] [--context 16] [--steps 16] [--repeat 3]

The fastest way that transformers has for a mixture of experts on a CPU: bf16 and grouped_mm experts.
Each figure is the best of --repeat runs. The last line is {"prefill":…,"decode1":…,"decode8":…} in
tokens a second.
"""

import argparse
import json
import time

import torch
from transformers import AutoModelForCausalLM


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.random = torch.Generator().manual_seed(0)
        self.model = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.bfloat16, experts_implementation="grouped_mm").eval()

    def prompt(self, batch: int, tokens: int) -> torch.Tensor:
        vocab = self.model.config.vocab_size
        return torch.randint(100, vocab, (batch, tokens), generator=self.random)

    def prefill(self, tokens: int) -> float:
        ids = self.prompt(1, tokens)
        start = time.perf_counter()
        self.model(ids, logits_to_keep=1)
        return tokens / (time.perf_counter() - start)

    def decode(self, batch: int, steps: int) -> float:
        out = self.model(self.prompt(batch, self.args.context), logits_to_keep=1, use_cache=True)
        start = time.perf_counter()
        for _ in range(steps):
            ids = out.logits[:, -1:].argmax(-1)
            out = self.model(ids, past_key_values=out.past_key_values, logits_to_keep=1)
        return batch * steps / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    for name, default in {"threads": 1, "prefill": 1024, "context": 16, "steps": 16,
                          "repeat": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with torch.no_grad():
        bench = Bench(args)
        bench.prefill(128)
        bench.decode(1, 2)
        figures = {"prefill": lambda: bench.prefill(args.prefill),
                   "decode1": lambda: bench.decode(1, args.steps),
                   "decode8": lambda: bench.decode(8, args.steps)}
        best = {name: max(run() for _ in range(args.repeat)) for name, run in figures.items()}
    print(json.dumps({name: round(value, 2) for name, value in best.items()}))


if __name__ == "__main__":
    main()
