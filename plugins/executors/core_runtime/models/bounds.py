"""Upper bounds of the sizes in a configuration: generous for any model, and far below what would stall this process.

Owns: the numbers. Never does: read a configuration. Called by: `core_runtime.models.configuration` and the table of
families.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LARGEST: Final = 1 << 31
"""Upper bound of a size that has no entry in `BOUNDS`."""

BOUNDS: Final[Mapping[str, int]] = {
    "num_hidden_layers": 1 << 10,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "moe_intermediate_size": 1 << 22,
    "shared_expert_intermediate_size": 1 << 22,
    "vocab_size": 1 << 24,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 14,
    "qk_rope_head_dim": 1 << 14,
    "qk_nope_head_dim": 1 << 14,
    "v_head_dim": 1 << 14,
    "q_lora_rank": 1 << 20,
    "kv_lora_rank": 1 << 20,
    "num_local_experts": 1 << 13,
    "num_experts": 1 << 13,
    "n_routed_experts": 1 << 13,
    "n_shared_experts": 1 << 8,
    "conv_L_cache": 1 << 10,
}
"""Usual name of a key → its upper bound."""

MOST_EXPERTS: Final = 1 << 17
"""Upper bound of the number of experts of all layers together. Each expert has matrices, and every matrix has a
description.
"""
