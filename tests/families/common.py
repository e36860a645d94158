"""What the tiny configurations of all architectures have in common.

Owns: the values that a key gets wherever a configuration has it, chosen off the defaults so that an unread key shows.
Never does: know an architecture. Called by: `architectures`.
"""

from collections.abc import Mapping
from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 263, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "num_local_experts": 6, "num_experts": 6, "n_routed_experts": 6, "moe_num_experts": 6,
    "num_experts_per_tok": 2, "num_experts_per_token": 2, "n_group": 3, "topk_group": 2, "num_expert_group": 3,
    "moe_intermediate_size": 40, "n_shared_experts": 2, "num_shared_experts": 2,
    "shared_expert_intermediate_size": 56, "shared_intermediate_size": 56, "first_k_dense_replace": 1,
    "num_dense_layers": 1, "kv_lora_rank": 20, "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "v_head_dim": 10, "mamba_d_state": 8, "mamba_d_conv": 3, "mamba_expand": 2, "mamba_n_heads": 6,
    "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_chunk_size": 8, "mamba_dt_rank": 5, "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 8, "linear_value_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "type_vocab_size": 2,
}  # fmt: skip
"""Small, and unlike each other."""
OPTIONS: dict[str, Any] = {
    "rms_norm_eps": 1e-4, "layer_norm_eps": 1e-4, "layer_norm_epsilon": 1e-4, "norm_eps": 1e-4, "norm_epsilon": 1e-4,
    "attention_bias": True, "attention_out_bias": True, "mlp_bias": True, "qkv_bias": True, "use_bias": True,
    "use_qkv_bias": True, "use_conv_bias": True, "conv_bias": True, "mamba_conv_bias": True, "mamba_proj_bias": True,
    "projectors_bias": True, "lm_head_bias": True, "add_bias_linear": True, "sliding_window": 7,
    "attention_chunk_size": 7, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 4.0, "use_qk_norm": True, "use_sliding_window": True, "clip_qkv": 1.2,
    "embedding_multiplier": 1.7, "residual_multiplier": 0.6, "attention_multiplier": 0.4, "logits_scaling": 1.9,
    "logit_scale": 0.35, "routed_scaling_factor": 1.7, "route_scale": 1.7, "time_step_limit": (0.05, 0.9),
}  # fmt: skip
"""Switches are on; numbers are off their defaults."""

ROPE_THETA = 5000.0
OTHER_PARTS = {0.5: 0.25, 0.25: 0.5, 1.0: 0.5}
"""Of each default share of a head that rotates, another one."""


def sizes_for(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The common sizes of the keys that a configuration has.

    defaults: the class's own values.
    """
    values = {key: value for key, value in SIZES.items() if key in defaults}
    if "kv_lora_rank" in values:
        values.pop("head_dim", None)
        values["num_key_value_heads"] = values["num_attention_heads"]
    return values


def values_for(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The same with everything else off its default."""
    values = sizes_for(defaults)
    values |= {key: value for key, value in OPTIONS.items() if key in defaults}
    if isinstance(defaults.get("norm_topk_prob"), bool):
        values["norm_topk_prob"] = not defaults["norm_topk_prob"]
    num_layers = values.get("num_hidden_layers", 4)
    for key in ("layer_types", "mlp_layer_types"):
        kinds = defaults.get(key)
        if kinds:
            values[key] = _mixed(kinds, num_layers)
    if "use_sliding_window" in values and "layer_types" in values:
        values["layer_types"] = _mixed(["full_attention", "sliding_attention"], num_layers)
    if defaults.get("rope_parameters"):
        values["rope_parameters"] = _rope(defaults["rope_parameters"])
    return values


def _mixed(kinds: list[str], num_layers: int) -> list[str]:
    """Every kind, in no regular order."""
    found = list(dict.fromkeys(kinds))
    order = [index % len(found) for index in range(num_layers)]
    order[-1] = order[max(0, len(order) - 2)]
    order[0], order[-2] = order[-2], order[0]
    return [found[number] for number in order]


def _rope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with another base and another share of the head."""
    nested = {key: value for key, value in parameters.items() if isinstance(value, Mapping)}
    if nested:
        found = {key: _rope(value) for key, value in nested.items()}
        for number, one in enumerate(found.values()):
            one["rope_theta"] = ROPE_THETA * (1 + 3 * number)
        return found
    changed = {**parameters, "rope_theta": ROPE_THETA}
    part = parameters.get("partial_rotary_factor")
    if part is not None:
        changed["partial_rotary_factor"] = OTHER_PARTS.get(part, 0.5)
    if "original_max_position_embeddings" in parameters:
        changed["original_max_position_embeddings"] = 16
    return changed
