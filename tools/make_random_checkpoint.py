#!/usr/bin/env python3
"""Make a tiny random checkpoint and its golden outputs, with Hugging Face transformers on the CPU.

    pip install -r tools/requirements-golden.txt
    tools/make_random_checkpoint.py qwen3_moe --out tiny --set norm_topk_prob=false

The folder holds safetensors under the names that hub checkpoints use, config.json, and golden.json,
computed in fp32 from the stored (rounded) weights:

    {"family", "transformers", "torch", "seed", "min_margin",
     "bf16": {"position_rms": {"p50", "p90", "max"}, "same_argmax"},
     "cases": [{"prompt": [ids], "greedy": [ids],
                "logits": [{"position": p, "ids": [20 ids], "values": [20], "bf16": [20]}]}]}

`position` counts from 0 through prompt + greedy; its logits predict position + 1. `min_margin` is
the least gap between best and second-best logit over all greedy steps: an fp32 engine whose logits
are off by less than half of it must produce the same tokens. `bf16` says how far the same library
gets from its own fp32 when it computes in bf16: the root mean square over the vocabulary of each
position's difference, and the share of positions that keep their best token. A bf16 engine may be as
far off: most positions by rounding alone, few by more, where rounding chose another expert. There is
no end token.

The initialisation differs from the library's, under which tiny models answer every prompt with one
repeated token: matrices keep the scale of their input, and the head spreads the logits.
"""

import argparse
import json
import pathlib
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

TOP = 20
LOGIT_STD = 3.0
LEAST_MARGIN = 2e-3  # well above what fp32 rounding does to logits
ATTENTION = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=32)
QWEN = dict(**ATTENTION, intermediate_size=96, moe_intermediate_size=32, num_experts_per_tok=4,
            norm_topk_prob=True)
FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": dict(**ATTENTION, intermediate_size=32, num_experts_per_tok=2),
    "qwen3_moe": QWEN,
    "qwen3_next": dict(**QWEN, shared_expert_intermediate_size=32, linear_num_key_heads=2,
                       linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32,
                       layer_types=None),  # None: every fourth layer has full attention
}
EXPERT_KEYS = {"mixtral": "num_local_experts"}


def parse_setting(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=JSON")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{value!r} is not JSON ({error})") from error


def make_model(args: argparse.Namespace) -> PreTrainedModel:
    keys = FAMILIES[args.family] | {EXPERT_KEYS.get(args.family, "num_experts"): args.experts}
    keys |= dict(vocab_size=args.vocab, hidden_size=args.hidden, num_hidden_layers=args.layers,
                 max_position_embeddings=4096, tie_word_embeddings=False, dtype=args.dtype,
                 bos_token_id=None, eos_token_id=None, pad_token_id=None)
    config = AutoConfig.for_model(args.family, **(keys | dict(args.set)))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    torch.manual_seed(args.seed)
    for name, p in model.named_parameters():
        initialise(name, p, config.tie_word_embeddings)
    return model.to(getattr(torch, args.dtype))


@torch.no_grad()
def initialise(name: str, p: torch.Tensor, tied: bool) -> None:
    if "embed_tokens" in name and tied:  # also the head; the first norm undoes the scale
        p.normal_(std=LOGIT_STD / p.shape[-1] ** 0.5)
    elif "embed_tokens" in name:
        p.normal_()
    elif "lm_head" in name:
        p.normal_(std=LOGIT_STD / p.shape[-1] ** 0.5)
    elif "conv1d" in name:
        p.normal_(std=p.shape[-1] ** -0.5)
    elif p.ndim >= 2:  # [out, in], or [experts, out, in]
        p.normal_(std=1.5 / p.shape[-1] ** 0.5)
    elif name.endswith("A_log"):
        p.uniform_(0.05, 4.0).log_()
    elif name.endswith("bias"):  # of attention, and dt_bias of the Gated DeltaNet
        p.normal_(std=0.5)
    else:  # norms: around what the library starts from, which is 1 or, for `1 + weight`, 0
        p.add_(torch.randn_like(p) * 0.1)


@torch.no_grad()
def golden_case(model: PreTrainedModel, bf16: PreTrainedModel, prompt: list[int],
                steps: int) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    """Greedy tokens with the cache, checked against one forward pass without it. Returns the case,
    the margins of the greedy steps and the bf16 model's logits minus the fp32 model's."""
    out = model.generate(torch.tensor([prompt]), max_new_tokens=steps, do_sample=False)
    logits = model(out, use_cache=False).logits[0]
    rough = bf16(out, use_cache=False).logits[0].float()
    first, n = len(prompt), out.shape[1]
    best = logits[first - 1:n - 1].topk(2, dim=-1)
    greedy = out[0, first:].tolist()
    if best.indices[:, 0].tolist() != greedy:
        raise SystemExit("cached and uncached runs disagree: try another --seed")
    positions = sorted({0, first // 2, first - 1, first, (first + n) // 2, n - 1})
    entries = []
    for p in positions:
        top = logits[p].topk(TOP)
        entries.append({"position": p, "ids": top.indices.tolist(),
                        "values": [round(v, 5) for v in top.values.tolist()],
                        "bf16": [round(v, 3) for v in rough[p, top.indices].tolist()]})
    case = {"prompt": prompt, "greedy": greedy, "logits": entries}
    same = (logits.argmax(-1) == rough.argmax(-1)).float()
    return case, best.values[:, 0] - best.values[:, 1], torch.cat([rough - logits, same[:, None]], 1)


def make_golden(folder: pathlib.Path, args: argparse.Namespace) -> dict[str, Any]:
    load = AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=torch.float32).eval()
    bf16 = load(folder, dtype=torch.bfloat16).eval()
    generator = torch.Generator().manual_seed(args.seed)
    prompts = [torch.randint(args.vocab, (n,), generator=generator).tolist() for n in args.prompts]
    cases, margins, rough = zip(*(golden_case(model, bf16, p, args.steps) for p in prompts))
    margin = torch.cat(margins).min().item()
    if margin < LEAST_MARGIN:
        raise SystemExit(f"two logits of a greedy step lie {margin:.5f} apart: try another --seed")
    difference, same = torch.cat(rough)[:, :-1], torch.cat(rough)[:, -1]
    rms = difference.square().mean(1).sqrt()
    position_rms = {"p50": rms.median(), "p90": rms.quantile(0.9), "max": rms.max()}
    return {"family": args.family, "transformers": transformers.__version__,
            "torch": torch.__version__, "seed": args.seed, "min_margin": round(margin, 5),
            "bf16": {"position_rms": {k: round(v.item(), 5) for k, v in position_rms.items()},
                     "same_argmax": round(same.mean().item(), 4)},
            "cases": list(cases)}


def make_checkpoint(args: argparse.Namespace) -> None:
    make_model(args).save_pretrained(args.out, max_shard_size=args.shard)
    golden = make_golden(args.out, args)
    (args.out / "golden.json").write_text(json.dumps(golden) + "\n")
    distinct = [len(set(case["greedy"])) for case in golden["cases"]]
    print(f"{args.out}: distinct tokens of {args.steps}: {distinct}; least margin between the best "
          f"two logits {golden['min_margin']}; bf16 {golden['bf16']}")


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=512)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16",
                        help="of the stored weights")
    parser.add_argument("--shard", default="5GB", help="most bytes of a file, e.g. 200KB")
    parser.add_argument("--set", type=parse_setting, action="append", default=[],
                        metavar="KEY=JSON", help="any field of the config; may be given again")
    parser.add_argument("--steps", type=int, default=32, help="greedy tokens per prompt")
    parser.add_argument("--prompts", type=int, nargs="+", default=[1, 7, 33, 64, 150],
                        help="prompt lengths (default 1 7 33 64 150)")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    make_checkpoint(argument_parser().parse_args())
