"""The models of the lease, by their shapes alone: weights are invented when they are loaded.

Owns: their configurations, and the bytes and operations of a token. Called by: the stages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from core_runtime.models.families import tensor_shapes

WEIGHT_BYTES = 2

SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3-8B": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
    "Qwen3-30B-A3B": {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 16384,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "sliding_window": 128,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "attention_bias": True,
        "vocab_size": 201088,
        "max_position_embeddings": 131072,
        "rope_theta": 150000.0,
        "rms_norm_eps": 1e-5,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "bos_token_id": 199998,
        "eos_token_id": 200002,
    },
}
"""Weights are bfloat16 in all of them; gpt-oss-20b is published with experts of four bits."""

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_experts": 8,
    "num_local_experts": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Sizes for a rehearsal, of the keys that a shape has."""


def write(name: str, folder: Path, changes: Mapping[str, Any] = MappingProxyType({})) -> Path:
    """Write a directory with the configuration alone. changes: of sizes that the shape has."""
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[name]
    config = {"torch_dtype": "bfloat16", **shape, **{key: size for key, size in changes.items() if key in shape}}
    if "layer_types" in shape:
        config["layer_types"] = shape["layer_types"][: config["num_hidden_layers"]]
    (path / "config.json").write_text(json.dumps(config))
    return path


def token_numbers(name: str) -> int:
    """Weights that one token reads: all matrices but the embedding, of the experts those that are chosen."""
    config = SHAPES[name]
    experts = config.get("num_experts") or config.get("num_local_experts") or 1
    chosen = config.get("num_experts_per_tok", 1)
    total = 0.0
    for tensor, shape in tensor_shapes(config).items():
        if "embed_tokens" in tensor or len(shape) < 2:
            continue
        share = chosen / experts if ".experts." in tensor else 1.0
        total += prod(shape) * share
    return round(total)


def token_bytes(name: str) -> int:
    """Bytes of these."""
    return token_numbers(name) * WEIGHT_BYTES
