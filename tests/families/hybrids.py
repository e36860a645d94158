"""Tiny configurations of decoders some of whose layers keep a state. Data alone, see `architectures`."""

from typing import Any

Changes = dict[str, Any]
LINEAR = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
CONV = ["conv", "full_attention", "conv", "conv"]
THIRD = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.34}
FALCON = {
    "head_dim": 16, "mamba_d_ssm": 96, "lm_head_multiplier": 0.7, "mlp_multipliers": [0.8, 1.3],
    "key_multiplier": 0.7, "attention_out_multiplier": 0.8, "attention_in_multiplier": 1.2,
    "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7], "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.75,
}  # fmt: skip
MAMBA1 = {"state_size": 8, "expand": 2, "conv_kernel": 3, "time_step_rank": 5}

FACTORS = {
    "full_attn_alpha_factor": 1.7, "full_attn_beta_factor": 0.8, "linear_attn_alpha_factor": 2.1,
    "linear_attn_beta_factor": 1.2, "mlp_alpha_factor": 1.4, "mlp_beta_factor": 0.7,
}  # fmt: skip

HYBRIDS: dict[str, dict[str, Changes]] = {
    "lfm2": {
        "plain": {"layer_types": CONV, "block_multiple_of": 16},
        "untied": {"layer_types": CONV, "block_auto_adjust_ff_dim": False, "conv_L_cache": 4},
    },
    "lfm2_moe": {"plain": {"layer_types": CONV}, "no bias": {"layer_types": CONV, "use_expert_bias": False}},
    "lfm3": {"plain": {"layer_types": ["conv", "full_attention", "sliding_attention", "conv"]}},
    "mamba": {"plain": {**MAMBA1}},
    "falcon_mamba": {"plain": {**MAMBA1}},
    "mamba2": {
        "plain": {
            "num_heads": 6,
            "head_dim": 16,
            "state_size": 8,
            "n_groups": 2,
            "conv_kernel": 3,
            "chunk_size": 8,
            "time_step_limit": (0.05, 0.9),
        }
    },
    "jamba": {
        "plain": {"attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
    },
    "bamba": {"plain": {"attn_layer_indices": [1, 3], "rope_parameters": THIRD}},
    "granitemoehybrid": {
        "plain": {
            "layer_types": ["mamba", "attention", "mamba", "attention"],
            "position_embedding_type": "rope",
            "head_dim": 16,
            "rms_norm_eps": 2e-4,  # with another one, two experts of a token are as good as one another
        },
        "nope": {"layer_types": ["mamba", "attention", "mamba", "mamba"]},
        "dense": {"layer_types": ["mamba", "attention", "mamba", "mamba"], "num_local_experts": 0},
    },
    "nemotron_h": {
        "plain": {
            "layers_block_type": ["mamba", "moe", "attention", "mlp", "mamba"],
            "num_hidden_layers": 5,
            "ssm_state_size": 8,
            "mamba_num_heads": 6,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "conv_kernel": 3,
            "chunk_size": 8,
            "moe_shared_expert_intermediate_size": 56,
            "norm_topk_prob": True,
            "n_group": 3,
            "topk_group": 2,
        }
    },
    "falcon_h1": {
        "plain": {**FALCON, "attention_bias": False, "mamba_proj_bias": False, "mlp_bias": False},
        "biased": {**FALCON},
        "normed": {"mamba_d_ssm": 96, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    },
    "qwen3_next": {"plain": {"layer_types": LINEAR, "mlp_only_layers": [2]}},
    "qwen3_5_text": {"plain": {"layer_types": LINEAR}},
    "qwen3_5_moe_text": {"plain": {"layer_types": LINEAR}},
    "olmo_hybrid": {"plain": {"layer_types": LINEAR, "linear_num_value_heads": 2, "linear_value_head_dim": 8}},
    "kimi_linear": {
        "plain": {
            "layer_types": LINEAR,
            "linear_head_dim": 8,
            "linear_num_heads": 6,
            "num_key_value_heads": 4,
            "linear_conv_kernel_dim": 3,
        }
    },
    "bailing_hybrid": {"plain": {"layer_types": LINEAR, "linear_head_dim": 8, "linear_num_heads": 6}},
    "minimax": {
        "plain": {"block_size": 8, "layer_types": LINEAR, **FACTORS},
        "no window": {"block_size": 8, "layer_types": LINEAR, "sliding_window": None},
    },
    "recurrent_gemma": {"plain": {"lru_width": 40, "attention_window_size": 7, "logits_soft_cap": 4.0}},
    "rwkv": {"plain": {"context_length": 128, "attention_hidden_size": 48}},
    "xlstm": {"plain": {}},
    "zamba2": {
        "plain": {
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid"],
            "num_hidden_layers": 5,
            "num_mem_blocks": 2,
            "n_mamba_heads": 6,
            "mamba_ngroups": 2,
            "num_key_value_heads": None,
            "adapter_rank": 5,
            "use_mem_rope": True,
        },
        "adapted": {
            "layers_block_type": ["hybrid", "mamba", "hybrid", "mamba"],
            "n_mamba_heads": 6,
            "num_key_value_heads": None,
            "adapter_rank": 7,
            "use_shared_attention_adapter": True,
            "add_bias_linear": True,
        },
    },
}
"""Architecture → variant → values of its own, over the common ones."""
