"""Tiny configurations of decoders with experts, and of latent attention. Data alone, see `architectures`."""

from typing import Any

Changes = dict[str, Any]
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
SPARSE = ["dense", "sparse", "sparse", "dense"]
LATENT_YARN = {
    "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.8,
    "mscale_all_dim": 0.7,
}  # fmt: skip
TEMPERED = {
    **LATENT_YARN, "mscale_all_dim": 0.8, "llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 8,
}  # fmt: skip

CHOSEN: Changes = {"index_topk": 5, "index_n_heads": 12, "index_head_dim": 24}
"""With few heads, several keys may have the score 0, among which transformers' choice is any."""

MIXTURES: dict[str, dict[str, Changes]] = {
    "mixtral": {"plain": {}},
    "qwen2_moe": {
        "plain": {"mlp_only_layers": [2]},
        "every second": {"decoder_sparse_step": 2, "use_sliding_window": False, "layer_types": None},
    },
    "qwen3_moe": {
        "plain": {"mlp_only_layers": [1], "use_sliding_window": False},
        "window": {"decoder_sparse_step": 2, "use_sliding_window": True},
    },
    "deepseek_v2": {
        "plain": {"topk_method": "group_limited_greedy", "norm_topk_prob": False},
        "no query rank": {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
        "yarn": {"rope_parameters": LATENT_YARN, "norm_topk_prob": False},
    },
    "deepseek_v3": {
        "plain": {},
        "no query rank": {"q_lora_rank": None, "rope_interleave": False},
        "yarn": {"rope_parameters": LATENT_YARN},
    },
    "deepseek_v32": {"plain": {}, "few keys": CHOSEN, "yarn": {**CHOSEN, "rope_parameters": LATENT_YARN}},
    "glm_moe_dsa": {
        "plain": {},
        "few keys": CHOSEN,
        "shared": {**CHOSEN, "indexer_types": ["full", "shared", "shared", "full"]},
    },
    "glm4_moe_lite": {"plain": {"mlp_layer_types": SPARSE}},
    "axk1": {"plain": {}},
    "axk2": {
        "plain": {"gated_norm_rank": 6},
        "few keys": {**CHOSEN, "gated_norm_rank": 6},
        "no groups": {**CHOSEN, "gated_norm_rank": 6, "n_group": None, "topk_group": None},
    },
    "longcat_flash": {
        "plain": {
            "num_layers": 2,
            "ffn_hidden_size": 88,
            "expert_ffn_hidden_size": 40,
            "zero_expert_num": 2,
            "moe_topk": 3,
            "head_dim": 8,
        }
    },
    "mistral4": {
        "plain": {"rope_parameters": TEMPERED},
        "no query rank": {"q_lora_rank": None, "rope_interleave": False, "rope_parameters": TEMPERED},
    },
    "glm4_moe": {"plain": {"head_dim": 16}, "unnormed": {"head_dim": 16, "use_qk_norm": False}},
    "dots1": {"plain": {}},
    "afmoe": {"plain": {"mup_enabled": True}},
    "aria_text": {"plain": {"moe_topk": 3, "moe_num_shared_experts": 2}},
    "cohere2_moe": {"plain": {"num_shared_experts": 2}, "sigmoid": {"expert_selection_fn": "sigmoid"}},
    "dbrx": {
        "plain": {
            "d_model": 48,
            "n_heads": 4,
            "n_layers": 3,
            "max_seq_len": 256,
            # the base that transformers takes without rope_parameters, whatever stands here
            "attn_config": {"clip_qkv": 0.9, "kv_n_heads": 2, "rope_theta": 10000.0},
            "ffn_config": {
                "hidden_size": 48,
                "ffn_hidden_size": 40,
                "moe_num_experts": 6,
                "moe_top_k": 3,
                "moe_normalize_expert_weights": 1.0,
            },
        }
    },
    "ernie4_5_moe": {
        "plain": {
            "moe_k": 3,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 3,
            "moe_layer_interval": 2,
        }
    },
    "exaone_moe": {"plain": {"mlp_layer_types": SPARSE}},
    "flex_olmo": {"plain": {}},
    "flint": {"plain": {"mlp_only_layers": [0]}},
    "gpt_oss": {"plain": {"swiglu_limit": 0.9, "swiglu_alpha": 1.3}},
    "granitemoe": {"plain": {}},
    "granitemoeshared": {"plain": {}, "no shared": {"shared_intermediate_size": 0}},
    "granitemoe_swa": {"plain": {"layer_rope_theta": [5000.0, 9000.0, 5000.0, 700.0]}},
    "hunyuan_v1_moe": {"plain": {"moe_topk": 2, "num_shared_expert": 1}},
    "hy_v3": {"plain": {"router_scaling_factor": 1.7}},
    "jetmoe": {"plain": {"kv_channels": 12}},
    "kolibri1": {"plain": {}},
    "laguna": {"plain": {"num_attention_heads_per_layer": [4, 6, 4, 6]}},
    "llama4_text": {
        "plain": {
            "intermediate_size": 40,
            "intermediate_size_mlp": 88,
            "moe_layers": [1, 3],
            "no_rope_layers": [1, 0, 1, 1],
            "layer_types": ["chunked_attention", "full_attention", "chunked_attention", "chunked_attention"],
            "floor_scale": 5,
            "attn_scale": 0.3,
        },
        "unnormed": {"use_qk_norm": False, "moe_layers": [0, 1, 2, 3], "attn_temperature_tuning": False},
    },
    "mellum": {"plain": {"layer_types": WINDOWS, "mlp_layer_types": SPARSE}, "full": {}},
    "mimo_v2_flash": {"plain": {}},
    "minimax_m2": {"plain": {}},
    "minimax_m3_vl_text": {"plain": {}},
    "olmoe": {"plain": {}},
    "phimoe": {
        "plain": {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
        "longrope": {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 5000.0,
                "factor": 4.0,
                "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.7],
                "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0],
                "short_mscale": 1.2,
                "long_mscale": 1.2,
                "original_max_position_embeddings": 64,
            }
        },
    },
    "solar_open": {"plain": {}},
    "zaya": {"plain": {"num_experts_per_tok": 1}},
}
"""Architecture → variant → values of its own, over the common ones."""
