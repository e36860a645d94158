"""The tiny models whose GGUF files are kept here: name → what transformers makes them from. Data alone.

A case is (model type, changes). Sizes that all share are in `SIZES`; a key that a configuration does not have is left out.
"""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": None, "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}  # fmt: skip
"""Of every case, where its configuration has the key."""

ENCODERS = ("bert", "roberta-rank")
"""Cases whose kept numbers are hidden states."""

IDS = [5, 17, 90, 3, 44, 61, 8, 29, 73, 52, 11, 38, 66, 20, 95, 7]
"""The text whose logits are kept."""

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 5000.0,
    "short_factor": [1.0, 1.0, 1.125, 1.25, 1.25, 1.5, 1.5, 1.75],
    "long_factor": [1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
    "original_max_position_embeddings": 256,
}
LATENT = {
    "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip
HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
MIXED = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {"architectures": ["BertModel"]}),
    "roberta-rank": (
        "roberta",
        {"architectures": ["RobertaForSequenceClassification"], "pad_token_id": 1, "id2label": {0: "fits"}},
    ),
    "llama": ("llama", {}),
    "llama-3": ("llama", {"rope_parameters": LLAMA3, "head_dim": 16, "tie_word_embeddings": True}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "llama-biased": ("llama", {"attention_bias": True}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 32}),
    "mixtral": ("mixtral", {"sliding_window": None}),
    "internlm2": ("llama", {"hidden_act": "silu"}),
    "exaone": ("llama", {"rms_norm_eps": 1e-5}),
    "minicpm": (
        "granite",
        {
            "num_key_value_heads": 4, "embedding_multiplier": 3.0, "residual_multiplier": 0.25,
            "attention_multiplier": 0.25, "logits_scaling": 2.0,
        },
    ),
    "qwen2": ("qwen2", {}),
    "qwen2vl": ("qwen2", {}),
    "qwen2moe": ("qwen2_moe", {"shared_expert_intermediate_size": 64}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3moe": ("qwen3_moe", {"head_dim": 32, "norm_topk_prob": True}),
    "gemma": ("gemma", {"head_dim": 32}),
    "gemma2": ("gemma2", {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 32}),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 32, "num_hidden_layers": 6},
    ),
    "phi2": ("phi", {"intermediate_size": 256, "num_key_value_heads": 4, "rope_parameters": HALF}),
    "phi3": ("phi3", {"sliding_window": None, "original_max_position_embeddings": 128}),
    "phi3-long": (
        "phi3",
        {"rope_parameters": LONG, "original_max_position_embeddings": 256, "max_position_embeddings": 512},
    ),
    "starcoder2": ("starcoder2", {"sliding_window": None}),
    "starcoder": ("gpt_bigcode", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 256}),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_ctx": 128}),
    "gptneox": ("gpt_neox", {"rope_parameters": {**HALF, "partial_rotary_factor": 0.25}}),
    "gptneox-serial": (
        "gpt_neox",
        {"use_parallel_residual": False, "rope_parameters": {**HALF, "partial_rotary_factor": 0.25}},
    ),
    "falcon": ("falcon", {"num_kv_heads": 1, "intermediate_size": 256, "ffn_hidden_size": 256}),
    "falcon-40b": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "intermediate_size": 256, "ffn_hidden_size": 256},
    ),
    "stablelm": ("stablelm", {"use_qkv_bias": True, "rope_parameters": {**HALF, "partial_rotary_factor": 0.25}}),
    "stablelm-parallel": ("stablelm", {"use_parallel_residual": True, "rope_parameters": HALF}),
    "olmo": ("olmo", {"clip_qkv": 1.5}),
    "olmo2": ("olmo2", {"rms_norm_eps": 1e-6}),
    "olmo3": ("olmo3", {"num_hidden_layers": 4, "layer_types": MIXED, "sliding_window": 8}),
    "olmoe": ("olmoe", {"num_key_value_heads": 4}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.25,
            "attention_multiplier": 0.125,
            "logits_scaling": 2.0,
        },
    ),
    "granitemoe": (
        "granitemoe",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.25,
            "attention_multiplier": 0.125,
            "logits_scaling": 2.0,
        },
    ),
    "granitemoe-shared": (
        "granitemoeshared",
        {
            "embedding_multiplier": 3.0, "residual_multiplier": 0.25, "attention_multiplier": 0.125,
            "logits_scaling": 2.0, "shared_intermediate_size": 64,
        },
    ),
    "command-r": ("cohere", {"logit_scale": 0.25, "use_qk_norm": False}),
    "command-r-plus": ("cohere", {"logit_scale": 0.25, "use_qk_norm": True}),
    "cohere2": ("cohere2", {"logit_scale": 0.25, "sliding_window": 8, "num_hidden_layers": 4, "rotary_pct": 1.0}),
    "deepseek2": ("deepseek_v2", {**LATENT, "topk_method": "greedy", "norm_topk_prob": False}),
    "deepseek2-lite": (
        "deepseek_v2",
        {**LATENT, "q_lora_rank": None, "topk_method": "greedy", "norm_topk_prob": False},
    ),
    "deepseek2-yarn": (
        "deepseek_v2",
        {
            **LATENT,
            "topk_method": "greedy",
            "norm_topk_prob": False,
            "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "deepseek3": ("deepseek_v3", {**LATENT, "n_group": 2, "topk_group": 1}),
    "glm4": ("glm4", {"head_dim": 16, "rope_parameters": HALF, "attention_bias": True}),
    "glm4moe": (
        "glm4_moe",
        {
            "head_dim": 16, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "rope_parameters": HALF,
            "use_qk_norm": True,
        },
    ),
    "exaone4": ("exaone4", {"sliding_window": 8, "num_hidden_layers": 4, "layer_types": MIXED}),
    "bloom": ("bloom", {"n_layer": 2, "n_head": 4, "seq_length": 128}),
    "mpt": ("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128, "expansion_ratio": 4}),
    "nemotron": ("nemotron", {"head_dim": 16}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "use_sliding_window": False}),
    "gpt-oss": ("gpt_oss", {"head_dim": 16, "sliding_window": 8}),
    "lfm2": (
        "lfm2",
        {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "block_auto_adjust_ff_dim": False,
            "block_ff_dim": 96,
        },
    ),
    "lfm2moe": (
        "lfm2_moe",
        {"num_hidden_layers": 3, "num_dense_layers": 1, "layer_types": ["conv", "full_attention", "conv"]},
    ),
    "mamba": ("mamba", {"state_size": 8, "conv_kernel": 4, "time_step_rank": 4, "expand": 2, "intermediate_size": 128}),
    "falcon-mamba": (
        "falcon_mamba",
        {"state_size": 8, "conv_kernel": 4, "time_step_rank": 4, "expand": 2, "intermediate_size": 128},
    ),
    "mamba2": (
        "mamba2",
        {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 2, "conv_kernel": 4, "chunk_size": 8},
    ),
    "ernie4_5": ("ernie4_5", {"head_dim": 16, "use_bias": False}),
    "ernie4_5-moe": (
        "ernie4_5_moe",
        {
            "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "moe_layer_start_index": 1,
            "moe_layer_end_index": 1, "moe_layer_interval": 1, "use_bias": False,
        },
    ),
    "seed_oss": ("seed_oss", {"head_dim": 16, "attention_bias": True, "attention_out_bias": False}),
    "arcee": ("arcee", {"head_dim": 16}),
    "dots1": (
        "dots1",
        {"head_dim": 16, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1},
    ),
    "hunyuan-dense": ("hunyuan_v1_dense", {"head_dim": 16}),
    "minimax-m2": ("minimax_m2", {"head_dim": 16}),
    "glm4moelite": ("glm4_moe_lite", {**LATENT}),
}  # fmt: skip
