#!/usr/bin/env python3
"""tests/golden/gated_delta.json: what transformers' Gated DeltaNet (Qwen3-Next) makes of random inputs in
float32, for the test of our reference implementation.

    .venv-golden/bin/python tools/make_gated_delta_golden.py            the file's inputs anew, compared
    .venv-golden/bin/python tools/make_gated_delta_golden.py --write    with new inputs

The output projection is made the identity, so that `out` is what the gated norm gives. More tokens than
transformers' chunk of 64, so that its chunked form is compared with our token-by-token one.
"""
import json
import pathlib
import sys

import torch
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

PATH = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/gated_delta.json"
TOKENS, KEY_HEADS, VALUE_HEADS, HEAD_DIM, WIDTH = 73, 1, 2, 16, 4
HIDDEN = VALUE_HEADS * HEAD_DIM


def parameters(layer):
    """Name in the file -> (tensor to fill, deviation, step): multiples of the step are exact in bf16."""
    rows = {name: torch.empty(1, TOKENS, getattr(layer, f"in_proj_{name}").out_features) for name in ("qkvz", "ba")}
    return {
        "conv": (layer.conv1d.weight, 0.5, 1 / 64), "a_log": (layer.A_log, 1, 1 / 64),
        "dt_bias": (layer.dt_bias, 1, 1 / 64), "norm": (layer.norm.weight, 1, 1 / 64),
        "qkvz": (rows["qkvz"], 1, 1 / 8), "ba": (rows["ba"], 1, 1 / 8),
    }


def numbers(tensor, digits=9):
    return [float(f"{x:.{digits}g}") for x in tensor.flatten().tolist()]


def main():
    torch.manual_seed(1)
    write = "--write" in sys.argv[1:]
    old = {} if write else json.loads(PATH.read_text())
    config = Qwen3NextConfig(
        hidden_size=HIDDEN, linear_num_key_heads=KEY_HEADS, linear_num_value_heads=VALUE_HEADS,
        linear_key_head_dim=HEAD_DIM, linear_value_head_dim=HEAD_DIM, linear_conv_kernel_dim=WIDTH,
        num_hidden_layers=1, layer_types=["linear_attention"])
    layer = Qwen3NextGatedDeltaNet(config, 0).float().eval()
    golden = {"shape": {"key_heads": KEY_HEADS, "value_heads": VALUE_HEADS, "head_dim": HEAD_DIM,
                        "conv_width": WIDTH, "tokens": TOKENS, "norm_eps": config.rms_norm_eps}}
    with torch.no_grad():
        for name, (tensor, deviation, step) in parameters(layer).items():
            if write:
                tensor.copy_((torch.randn_like(tensor) * deviation / step).round() * step)
            else:
                tensor.copy_(torch.tensor(old[name]).view_as(tensor))
            golden[name] = numbers(tensor)
            if name in ("qkvz", "ba"):  # the input projections give what was chosen
                getattr(layer, f"in_proj_{name}").forward = lambda hidden, chosen=tensor: chosen
        layer.out_proj.weight.copy_(torch.eye(HIDDEN))
        golden["out"] = numbers(layer(torch.zeros(1, TOKENS, HIDDEN)), 7)
    if write:
        PATH.write_text(json.dumps(golden) + "\n")
    elif any(abs(a - b) > 1e-5 * (1 + abs(b)) for a, b in zip(golden["out"], old["out"], strict=True)):
        sys.exit(f"{PATH}: `out` is no longer what transformers makes")


if __name__ == "__main__":
    main()
