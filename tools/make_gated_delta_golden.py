#!/usr/bin/env python3
"""tests/golden/gated_delta.json: what transformers' Gated DeltaNet (Qwen3-Next) makes of random inputs in
float32, for the test of our reference implementation. Made anew and compared; --write replaces it.

    .venv-golden/bin/python tools/make_gated_delta_golden.py [--write]

The output projection is made the identity, so that `out` is what the gated norm gives. More tokens than
transformers' chunk of 64, so that its chunked form is compared with our token-by-token one.
"""
import json
import pathlib
import sys

import torch
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

TOKENS, KEY_HEADS, VALUE_HEADS, HEAD_DIM, WIDTH = 73, 1, 2, 16, 4
HIDDEN = VALUE_HEADS * HEAD_DIM


def rounded(tensor, step):
    """Multiples of `step`: exact in bf16 and short in decimal."""
    return (tensor / step).round() * step


def numbers(tensor, digits=9):
    return [float(f"{x:.{digits}g}") for x in tensor.flatten().tolist()]


def main():
    torch.manual_seed(1)
    config = Qwen3NextConfig(
        hidden_size=HIDDEN, linear_num_key_heads=KEY_HEADS, linear_num_value_heads=VALUE_HEADS,
        linear_key_head_dim=HEAD_DIM, linear_value_head_dim=HEAD_DIM, linear_conv_kernel_dim=WIDTH,
        num_hidden_layers=1, layer_types=["linear_attention"])
    layer = Qwen3NextGatedDeltaNet(config, 0).float().eval()
    inputs = {}
    with torch.no_grad():
        layer.conv1d.weight.copy_(rounded(torch.randn_like(layer.conv1d.weight) * 0.5, 1 / 64))
        layer.A_log.copy_(rounded(torch.randn_like(layer.A_log), 1 / 64))
        layer.dt_bias.copy_(rounded(torch.randn_like(layer.dt_bias), 1 / 64))
        layer.norm.weight.copy_(rounded(torch.randn_like(layer.norm.weight), 1 / 64))
        layer.out_proj.weight.copy_(torch.eye(HIDDEN))
        for name in ("in_proj_qkvz", "in_proj_ba"):
            module = getattr(layer, name)
            inputs[name] = rounded(torch.randn(1, TOKENS, module.out_features), 1 / 8)
            module.forward = lambda hidden, chosen=inputs[name]: chosen
        out = layer(torch.zeros(1, TOKENS, HIDDEN))
    golden = {
        "shape": {"key_heads": KEY_HEADS, "value_heads": VALUE_HEADS, "head_dim": HEAD_DIM,
                  "conv_width": WIDTH, "tokens": TOKENS, "norm_eps": config.rms_norm_eps},
        "conv": numbers(layer.conv1d.weight), "a_log": numbers(layer.A_log),
        "dt_bias": numbers(layer.dt_bias), "norm": numbers(layer.norm.weight),
        "qkvz": numbers(inputs["in_proj_qkvz"]), "ba": numbers(inputs["in_proj_ba"]),
        "out": numbers(out, 7),
    }
    path = pathlib.Path(__file__).parent.parent / "tests/golden/gated_delta.json"
    if "--write" in sys.argv[1:]:
        path.write_text(json.dumps(golden) + "\n")
        return
    old = json.loads(path.read_text())
    for name, values in golden.items():
        if name != "shape" and any(abs(a - b) > 1e-5 for a, b in zip(values, old[name], strict=True)):
            sys.exit(f"{path}: {name} is no longer what transformers makes")


if __name__ == "__main__":
    main()
