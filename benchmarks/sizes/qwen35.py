"""The GGUF file of Qwen3.5, whose layers are gated delta rules but for every fourth, as llama.cpp reads it.

Owns: its tensors and metadata. Never does: know a path. Called by: the files of sizes and of agents.

It has llama.cpp's own tensors, which no module of `core` reads.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from benchmarks.gguf_formats import add_tokenizer
from benchmarks.sizes.blocks import random_bfloat16


def qwen35_tensors(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """{name: shape} of a Qwen3.5 GGUF file. A vector is float32, a matrix bfloat16 but for the convolution's."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    size, kv = config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    value_heads = config["linear_num_value_heads"]
    values = value_heads * config["linear_value_head_dim"]
    common = {"attn_norm": (hidden,), "post_attention_norm": (hidden,)}
    common |= {"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
    full = {"attn_q": (2 * heads * size, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden)}
    full |= {"attn_output": (hidden, heads * size), "attn_q_norm": (size,), "attn_k_norm": (size,)}
    linear = {"attn_qkv": (2 * keys + values, hidden), "attn_gate": (values, hidden)}
    linear |= {"ssm_conv1d": (2 * keys + values, config["linear_conv_kernel_dim"])}
    linear |= {"ssm_beta": (value_heads, hidden), "ssm_alpha": (value_heads, hidden)}
    linear |= {"ssm_norm": (config["linear_value_head_dim"],), "ssm_out": (hidden, values)}
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (config["vocab_size"], hidden)}
    for layer, kind in enumerate(config["layer_types"]):
        of_layer = common | (full if kind == "full_attention" else linear)
        found |= {f"blk.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
        if kind != "full_attention":
            found |= {f"blk.{layer}.ssm_dt.bias": (value_heads,), f"blk.{layer}.ssm_a": (value_heads,)}
    return found | {"output_norm.weight": (hidden,)}


def write_qwen35(path: Path, config: dict[str, Any]) -> None:
    """Write a GGUF file of random bfloat16 weights for llama.cpp."""
    writer = gguf.GGUFWriter(path, "qwen35")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(config["head_dim"] // 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_tokenizer(writer, config["vocab_size"])
    draw = np.random.default_rng(0)
    for name, shape in qwen35_tensors(config).items():
        deviation = 1 / math.sqrt(shape[-1])
        if name.endswith("ssm_a"):  # negative, or states would grow
            writer.add_tensor(name, np.full(shape, -1, np.float32))
        elif len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
        elif "ssm_conv1d" in name:
            writer.add_tensor(name, draw.standard_normal(shape, np.float32) * np.float32(deviation))
        else:
            raw = random_bfloat16(shape, deviation, draw).view(np.uint8).reshape(*shape[:-1], -1)
            writer.add_tensor(name, raw, raw_dtype=Type.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
