"""The models of `benchmarks.families`: one of each kind, of 100 to 300 million parameters.

Owns: their configurations, and the bytes that a token reads of their weights. Called by: `benchmarks.families`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from core_runtime.models.families import tensor_shapes

WEIGHT_BYTES = 2

SHARED = {
    "vocab_size": 16384,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "latent": {
        **SHARED,
        "model_type": "deepseek_v2",
        "architectures": ["DeepseekV2ForCausalLM"],
        "num_hidden_layers": 12,
        "num_key_value_heads": 16,
        "intermediate_size": 2816,
        "kv_lora_rank": 256,
        "q_lora_rank": None,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "first_k_dense_replace": 1,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_shared_experts": 2,
        "moe_intermediate_size": 256,
        "topk_method": "greedy",
    },
    "experts": {
        **SHARED,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_hidden_layers": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 2816,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 192,
    },
    "hybrid": {
        **SHARED,
        "model_type": "lfm2",
        "architectures": ["Lfm2ForCausalLM"],
        "num_hidden_layers": 12,
        "num_key_value_heads": 4,
        "intermediate_size": 2816,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "conv", "full_attention"] * 4,
    },
    "delta": {
        **SHARED,
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "num_hidden_layers": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 2816,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    },
    "mamba": {
        **SHARED,
        "model_type": "granitemoehybrid",
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "num_hidden_layers": 12,
        "num_key_value_heads": 4,
        "intermediate_size": 2816,
        "shared_intermediate_size": 2816,
        "num_local_experts": 0,
        "layer_types": ["mamba", "mamba", "attention"] * 4,
        "mamba_n_heads": 32,
        "mamba_d_head": 64,
        "mamba_d_state": 64,
        "mamba_n_groups": 1,
        "position_embedding_type": "nope",
    },
}


def weight_bytes(config: Mapping[str, Any]) -> tuple[int, int]:
    """(of all weights, of those that one token multiplies with)."""
    total = active = 0
    chosen = config.get("num_experts_per_tok", 0)
    experts = config.get("num_experts") or config.get("n_routed_experts") or 1
    tied = config.get("tie_word_embeddings", False)
    for name, shape in tensor_shapes(config).items():
        nbytes = WEIGHT_BYTES * prod(shape)
        total += nbytes
        if re.search(r"\.experts\.\d+\.", name):
            active += nbytes * chosen // experts
        elif tied or "embed_tokens" not in name:
            active += nbytes
    return total, active
