"""The models of `benchmarks.sizes`: configurations with the widths of models that people use.

Owns: the table. Never does: make files. Called by: the file makers, the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CONTEXT = 40960
"""Positions that each model allows: enough for the longest row."""
SHARED = {"max_position_embeddings": CONTEXT, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True, slots=True)
class SizedModel:
    """A model of true widths.

    config: as `config.json` of the real model has it, all layers included.
    forms: formats in which it is measured: `bf16`, or one of `files.RECIPES`.
    architecture: the name in GGUF files; None where no such file is made. `qwen35` is made for llama.cpp, not for `core`.
    what: what it stands for, in the report.
    """

    config: Mapping[str, Any]
    forms: tuple[str, ...]
    what: str
    architecture: str | None = None

    @property
    def layers(self) -> int:
        """Layers of the real model."""
        return int(self.config["num_hidden_layers"])

    def cut(self, layers: int | None) -> dict[str, Any]:
        """Return the configuration with fewer layers: the first ones."""
        config = dict(self.config)
        if layers is not None:
            config["num_hidden_layers"] = layers
            if "layer_types" in config:
                config["layer_types"] = list(config["layer_types"])[:layers]
        return config


def every(period: int, layers: int, usual: str) -> list[str]:
    """Return kinds of layers: full attention in every `period`-th one."""
    return ["full_attention" if (index + 1) % period == 0 else usual for index in range(layers)]


LLAMA_8B = {
    **SHARED,
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
GEMMA3_4B = {
    **SHARED,
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "vocab_size": 262208,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window": 1024,
    "layer_types": every(6, 34, "sliding_attention"),
    "tie_word_embeddings": True,
}
QWEN3_30B_A3B = {
    **SHARED,
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
}
GPT_OSS_20B = {
    **SHARED,
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "attention_bias": True,
    "tie_word_embeddings": False,
}
DEEPSEEK_V2_LITE = {
    **SHARED,
    "model_type": "deepseek_v2",
    "architectures": ["DeepseekV2ForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1408,
    "topk_method": "greedy",
    "vocab_size": 102400,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
QWEN35 = {
    **SHARED,
    "head_dim": 256,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 248320,
    "rms_norm_eps": 1e-6,
}
QWEN35_08B = {
    **QWEN35,
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "linear_num_value_heads": 16,
    "layer_types": every(4, 24, "linear_attention"),
    "tie_word_embeddings": True,
}
QWEN35_35B_A3B = {
    **QWEN35,
    "model_type": "qwen3_5_moe_text",
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "linear_num_value_heads": 32,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "layer_types": every(4, 40, "linear_attention"),
    "tie_word_embeddings": False,
}
MODELS = {
    "llama-8b": SizedModel(LLAMA_8B, ("Q4_K_M", "bf16"), "a dense model of 8B (Llama 3)", "llama"),
    "gemma3-4b": SizedModel(GEMMA3_4B, ("Q4_K_M", "bf16"), "sliding windows (Gemma 3 4B)", "gemma3"),
    "qwen3-30b-a3b": SizedModel(QWEN3_30B_A3B, ("Q4_K_M",), "128 experts (Qwen3-30B-A3B)", "qwen3moe"),
    "gpt-oss-20b": SizedModel(GPT_OSS_20B, ("MXFP4",), "32 experts with sinks and windows (gpt-oss-20b)", "gpt-oss"),
    "deepseek-v2-lite": SizedModel(DEEPSEEK_V2_LITE, ("Q4_K_M",), "latent attention (DeepSeek-V2-Lite)", "deepseek2"),
    "qwen3.5-0.8b": SizedModel(QWEN35_08B, ("bf16",), "a gated delta rule (Qwen3.5 0.8B)", "qwen35"),
    "qwen3.5-35b-a3b": SizedModel(QWEN35_35B_A3B, ("bf16",), "the same with 256 experts (Qwen3.5-35B-A3B)"),
}
