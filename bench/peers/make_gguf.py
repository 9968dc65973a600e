#!/usr/bin/env python3
"""Writes a Mixtral folder as a GGUF file in bf16 for llama.cpp, without its vocabulary.

    make_gguf.py MODEL OUT.gguf

llama.cpp's own converter wants torch, transformers and sentencepiece; for a comparison of speed the
weights are enough.
"""

import argparse
import json
import pathlib

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

LAYER_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
               "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
               "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
               "block_sparse_moe.gate": "ffn_gate_inp"}
EXPERT_NAMES = {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}


def add(writer: gguf.GGUFWriter, name: str, weight: np.ndarray) -> None:
    """Matrices stay bf16; norms and routers are f32, as llama.cpp has them."""
    if weight.ndim == 1 or "gate_inp" in name:
        writer.add_tensor(f"{name}.weight", weight.astype(np.float32))
        return
    rows = np.ascontiguousarray(weight, dtype=ml_dtypes.bfloat16).view(np.uint8)
    writer.add_tensor(f"{name}.weight", rows, raw_dtype=gguf.GGMLQuantizationType.BF16)


def paired(weight: np.ndarray, heads: int) -> np.ndarray:
    """Hugging Face rotates rows (i, i + dim/2) of a head, llama.cpp (2i, 2i + 1)."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def add_layer(writer: gguf.GGUFWriter, index: int, layer: dict[str, np.ndarray],
              config: dict) -> None:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for hf_name, name in LAYER_NAMES.items():
        weight = layer[f"{hf_name}.weight"]
        if name in heads:
            weight = paired(weight, heads[name])
        add(writer, f"blk.{index}.{name}", weight)
    for hf_name, name in EXPERT_NAMES.items():
        experts = [layer[f"block_sparse_moe.experts.{e}.{hf_name}.weight"]
                   for e in range(config["num_local_experts"])]
        add(writer, f"blk.{index}.{name}", np.stack(experts))


def add_config(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    config = json.loads((args.model / "config.json").read_text())
    weights: dict[str, np.ndarray] = {}
    for file in sorted(args.model.glob("*.safetensors")):
        weights |= load_file(file)
    writer = gguf.GGUFWriter(args.out, "llama")
    add_config(writer, config)
    add(writer, "token_embd", weights["model.embed_tokens.weight"])
    add(writer, "output_norm", weights["model.norm.weight"])
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        layer = {name.removeprefix(prefix): w for name, w in weights.items()
                 if name.startswith(prefix)}
        add_layer(writer, i, layer, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
