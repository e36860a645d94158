"""Tiny configurations of the decoders of GPT-2's time. Data alone, see `architectures`."""

from typing import Any

Changes = dict[str, Any]
GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 256, "n_inner": 88}

EARLY: dict[str, dict[str, Changes]] = {
    "gpt2": {
        "plain": {**GPT2},
        "by layer": {**GPT2, "n_inner": None, "scale_attn_by_inverse_layer_idx": True, "activation_function": "relu"},
        "unscaled": {**GPT2, "scale_attn_weights": False, "tie_word_embeddings": False},
    },
    "gpt_bigcode": {"plain": {**GPT2}, "many heads": {**GPT2, "multi_query": False}},
    "gpt_neo": {
        "plain": {
            "num_layers": 4, "num_heads": 4, "window_size": 7, "attention_types": [[["global", "local"], 2]],
            "intermediate_size": 88,
        }
    },
    "gpt_neox": {
        "plain": {"num_attention_heads": 3},
        "serial": {"use_parallel_residual": False, "attention_bias": False},
    },
    "gpt_neox_japanese": {"plain": {"intermediate_multiple_size": 3}},
    "gptj": {"plain": {**GPT2, "rotary_dim": 8}},
    "codegen": {"plain": {**GPT2, "rotary_dim": 8}},
    "opt": {
        "plain": {"ffn_dim": 88},
        "projected": {"ffn_dim": 88, "word_embed_proj_dim": 24},
        "post norm": {"ffn_dim": 88, "word_embed_proj_dim": 24, "do_layer_norm_before": False},
        "bare": {"ffn_dim": 88, "enable_bias": False, "layer_norm_elementwise_affine": False},
    },
    "bloom": {
        "plain": {"n_layer": 3, "n_head": 4},
        "six heads": {"n_layer": 3, "n_head": 6},
        "normed stream": {"n_layer": 3, "n_head": 4, "apply_residual_connection_post_layernorm": True},
    },
    "mpt": {
        "plain": {
            "d_model": 48, "n_heads": 6, "n_layers": 3, "expansion_ratio": 2, "max_seq_len": 256, "logit_scale": None,
            "attn_config": {"clip_qkv": 0.9, "softmax_scale": 0.3},
        }
    },
    "falcon": {
        "plain": {"num_kv_heads": 2, "ffn_hidden_size": 88, "bias": True},
        "new": {"num_kv_heads": 2, "ffn_hidden_size": 88, "bias": True, "new_decoder_architecture": True},
        "new, one norm": {
            "num_kv_heads": 2, "ffn_hidden_size": 88, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1,
        },
        "alibi": {"ffn_hidden_size": 88, "alibi": True, "bias": True},
        "serial": {"ffn_hidden_size": 88, "parallel_attn": False, "multi_query": False, "bias": True},
    },
    "biogpt": {"plain": {}, "unscaled": {"scale_embedding": False}},
    "ctrl": {"plain": {"n_embd": 48, "dff": 88, "n_layer": 3, "n_head": 4, "n_positions": 256}},
    "xglm": {"plain": {"d_model": 48, "ffn_dim": 88, "num_layers": 3, "attention_heads": 4}},
    "openai-gpt": {"plain": {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 256, "afn": "gelu"}},
    "cpmant": {"plain": {"dim_head": 12, "dim_ff": 88, "prompt_length": 4}},
}  # fmt: skip
"""Architecture → variant → values of its own, over the common ones."""
