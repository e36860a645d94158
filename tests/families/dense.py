"""Tiny configurations of dense decoders. Data alone, see `architectures`."""

from typing import Any

Changes = dict[str, Any]
SLIDING = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LONG_FACTORS = {
    "rope_type": "longrope",
    "rope_theta": 5000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.2, 1.9, 2.7, 4.0],
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.5,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 1.0, "alpha": 50.0}
NO_LAYER_INPUTS = {"hidden_size_per_layer_input": 0, "global_head_dim": 24}
UNCAPPED = {"attn_logit_softcapping": None}
"""The code of Gemma 3 has the key and does not look at it."""

DENSE: dict[str, dict[str, Changes]] = {
    "llama": {
        "plain": {},
        "llama3": {"rope_parameters": LLAMA3, "tie_word_embeddings": True},
        "yarn": {"rope_parameters": YARN},
        "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 3.0}},
        "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 3.0}},
    },
    "internlm3": {"plain": {}},
    "iquestcoder": {"plain": {}},
    "arcee": {"plain": {}},
    "apertus": {"plain": {}},
    "bitnet": {"plain": {}},
    "cwm": {"plain": {}},
    "diffllama": {"plain": {}},
    "doge": {"plain": {}},
    "ernie4_5": {"plain": {}},
    "exaone4": {
        "plain": {"layer_types": SLIDING},
        "no window": {"sliding_window": None, "layer_types": ["full_attention"] * 4},
    },
    "helium": {"plain": {"head_dim": 12}},
    "hyperclovax": {"plain": {}, "no post norm": {"use_post_norm": False}},
    "jais2": {"plain": {}},
    "minicpm3": {"plain": {"scale_emb": 3, "scale_depth": 1.1, "dim_model_base": 32}},
    "nanochat": {"plain": {}},
    "seed_oss": {"plain": {}},
    "smollm3": {"plain": {"no_rope_layers": [1, 0, 1, 0]}},
    "stablelm": {
        "plain": {"hidden_size": 64},
        "parallel": {"hidden_size": 64, "use_parallel_residual": True},
        "normed": {"hidden_size": 64, "qk_layernorm": True},
    },
    "starcoder2": {"plain": {}},
    "youtu": {"plain": {"pad_token_id": None}},  # transformers zeroes its row whenever it loads the model
    "qwen2": {"plain": {}, "no window": {"use_sliding_window": False, "layer_types": None}},
    "qwen3": {"plain": {}, "no window": {"use_sliding_window": False, "layer_types": None}},
    "mistral": {"plain": {}, "no window": {"sliding_window": None}},
    "ministral": {"plain": {"layer_types": SLIDING}},
    "ministral3": {
        "plain": {
            "rope_parameters": {
                **YARN,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.3,
            }
        }
    },
    "phi": {"plain": {"hidden_size": 64}, "normed": {"hidden_size": 64, "qk_layernorm": True}},
    "phi3": {
        "plain": {},
        "longrope": {"rope_parameters": LONG_FACTORS, "original_max_position_embeddings": 64, "hidden_size": 64},
        "longrope whole": {
            "rope_parameters": {**LONG_FACTORS, "partial_rotary_factor": 1.0},
            "original_max_position_embeddings": 64,
            "hidden_size": 32,
        },
        "longrope beyond": {
            "rope_parameters": {**LONG_FACTORS, "original_max_position_embeddings": 8},
            "original_max_position_embeddings": 8,
            "hidden_size": 64,
        },
    },
    "phi4_multimodal": {
        "plain": {
            "hidden_size": 64,
            "rope_parameters": LONG_FACTORS,
            "original_max_position_embeddings": 64,
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 40,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 28,
                "crop_size": 28,
            },
            "audio_config": {
                "hidden_size": 32,
                "intermediate_size": 40,
                "num_blocks": 1,
                "num_attention_heads": 2,
                "ext_pw_out_channel": 32,
                "nemo_conv_channels": 32,
            },
        }
    },
    "gemma": {"plain": {}},
    "gemma2": {"plain": {}},
    "gemma3_text": {
        "plain": {**UNCAPPED},
        "pattern": {**UNCAPPED, "layer_types": None, "_sliding_window_pattern": 2, "num_hidden_layers": 5},
        "uncapped": {**UNCAPPED, "final_logit_softcapping": None},
    },
    "vaultgemma": {"plain": {}},
    "gemma3n_text": {
        "plain": {
            "vocab_size_per_layer_input": 263,
            "hidden_size_per_layer_input": 12,
            "laurel_rank": 6,
            "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
            "intermediate_size": [88, 88, 88, 88],
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "num_kv_shared_layers": 2,
        },
        "three streams": {
            "vocab_size_per_layer_input": 200,
            "hidden_size_per_layer_input": 12,
            "laurel_rank": 6,
            "activation_sparsity_pattern": [0.5, 0.95, 0.0, 0.8],
            "intermediate_size": [88, 56, 72, 40],
            "num_kv_shared_layers": 0,
            "altup_num_inputs": 3,
            "altup_correct_scale": False,
        },
    },
    "gemma4_text": {
        "plain": {**NO_LAYER_INPUTS},
        "ten layers": {**NO_LAYER_INPUTS, "num_hidden_layers": 10, "layer_types": None},
        "values are keys": {**NO_LAYER_INPUTS, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        "experts": {**NO_LAYER_INPUTS, "enable_moe_block": True, "top_k_experts": 2},
        "inputs of layers": {
            "vocab_size_per_layer_input": 263,
            "hidden_size_per_layer_input": 12,
            "global_head_dim": 24,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
    },
    "gemma4_unified_text": {"plain": {"global_head_dim": 24, "attention_k_eq_v": True}},
    "glm": {
        "plain": {},
        "half": {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}},
    },
    "glm4": {"plain": {}},
    "granite": {"plain": {}},
    "granite_swa": {"plain": {"layer_rope_theta": [5000.0, 9000.0, 5000.0, 700.0]}},
    "cohere": {"plain": {}, "unnormed": {"use_qk_norm": False, "attention_bias": False}},
    "cohere2": {"plain": {"layer_types": SLIDING}},
    "cohere_compass_text": {
        "plain": {
            "layer_types": SLIDING,
            "head_dim": 12,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [2, 2, 2]},
                "full_attention": None,
            },
        }
    },
    "olmo": {"plain": {}},
    "olmo2": {"plain": {}},
    "olmo3": {"plain": {}},
    "hunyuan_v1_dense": {"plain": {}, "dynamic": {"rope_parameters": DYNAMIC}},
    "nemotron": {"plain": {}},
    "persimmon": {"plain": {"hidden_size": 64}, "unnormed": {"hidden_size": 64, "qk_layernorm": False}},
    "modernbert-decoder": {"plain": {"norm_bias": True, "local_attention": 14}},
    "hrm_text": {"plain": {"num_layers_per_stack": 2}},
    "inkling2_text": {"plain": {"rel_extent": 16, "d_rel": 4, "swa_head_dim": 8}},
    "inkling_text": {"plain": {"rel_extent": 16, "d_rel": 4, "swa_head_dim": 8}},
    "hy_v4": {"plain": {}},
}
"""Architecture → variant → values of its own, over the common ones."""
