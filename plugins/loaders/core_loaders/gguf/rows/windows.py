"""Architectures with sliding windows in some layers, or with norms that are doubled, offset or without weights."""

from __future__ import annotations

from typing import Final

import numpy as np

from core_loaders.gguf.architectures import Architecture, Config
from core_loaders.gguf.keys import MAX_LAYERS, RMS
from core_loaders.gguf.rows.llamas import ATTENTION_BIASES, QKV_BIASES, SILU, UNBIASED
from core_loaders.gguf.source import Source

WINDOW: Final = {"attention.sliding_window": "sliding_window"}
LAYER_EPS: Final = {"attention.layer_norm_epsilon": "layer_norm_eps"}
BEFORE_AND_BEHIND: Final = {"ffn_norm": "pre_feedforward_layernorm"}
GELU: Final = {"hidden_activation": "gelu_pytorch_tanh", **UNBIASED}
PATTERN: Final = "attention.sliding_window_pattern"


def windows(source: Source, config: Config, usual: int) -> None:
    """Set `layer_types`: each layer's kind from the file's list, or full attention in every n-th layer. usual: n
    without a key.
    """
    num_layers = config["num_hidden_layers"]
    slides = source.by_layer(PATTERN, bool, num_layers)
    if slides is None:
        period = source.integer(PATTERN, 1, MAX_LAYERS, usual)
        slides = [bool((index + 1) % period) for index in range(num_layers)]
    if not config.get("sliding_window"):
        config["sliding_window"] = None
        slides = [False] * num_layers
    config["layer_types"] = ["sliding_attention" if one else "full_attention" for one in slides]


def gemma2(source: Source, config: Config) -> None:
    """Set a sliding window in every other layer. Only the 27B model, with 46 layers, scales queries by its hidden size
    per head.
    """
    windows(source, config, 2)
    config["query_pre_attn_scalar"] = _scalar(config, 46)
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        config[key] = config.get(key) or None


def gemma3(source: Source, config: Config) -> None:
    """Set full attention in every sixth layer, unless the file says otherwise. Only the 27B model has 62 layers."""
    windows(source, config, 6)
    config["rope_local_base_freq"] = source.number("rope.freq_base_swa", 1.0, 1e12, 10000.0)
    config["query_pre_attn_scalar"] = _scalar(config, 62)
    config["attn_logit_softcapping"] = None
    config["final_logit_softcapping"] = config.get("final_logit_softcapping") or None


def _scalar(config: Config, layers_of_27b: int) -> int:
    """Return the number whose square root divides queries, which the format implies."""
    if config["num_hidden_layers"] == layers_of_27b:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


def olmo2_or_3(source: Source, config: Config) -> None:
    """Select OLMo 3 for OLMo 2 with sliding windows."""
    if not config.pop("sliding_window", 0):
        return
    config.update(model_type="olmo3", architectures=["Olmo3ForCausalLM"])
    config["sliding_window"] = source.value("attention.sliding_window")
    windows(source, config, 4)
    near = {"rope_type": "default", "rope_theta": source.number("rope.freq_base_swa", 1.0, 1e12, config["rope_theta"])}
    wide = {"rope_type": "default", "rope_theta": config.pop("rope_theta"), **config.pop("rope_scaling", {})}
    config["rope_parameters"] = {"full_attention": wide, "sliding_attention": near}


def cohere(source: Source, config: Config) -> None:
    """Detect head norms, which depend on the model's size."""
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in source.tensors


def every_fourth(source: Source, config: Config) -> None:
    """Set full attention in every fourth layer."""
    windows(source, config, 4)


def gpt_oss(source: Source, config: Config) -> None:
    """Set a sliding window in every other layer, starting with the first. YaRN's corrections are not rounded, which no
    key says.
    """
    windows(source, config, 2)
    if "rope_scaling" in config:
        config["rope_scaling"]["truncate"] = False


def phi3(source: Source, config: Config) -> None:
    """Treat a window of 0 as none."""
    config["sliding_window"] = config.get("sliding_window") or None


def olmo(source: Source, config: Config) -> None:
    """Set the norms' epsilon, which is a constant in the model's code."""
    if "attention.layer_norm_epsilon" in source and source.value("attention.layer_norm_epsilon") != _near(1e-5):
        raise source.fail("has norms with another epsilon than 1e-05, the one of every OLMo.")


def _near(value: float) -> float:
    """Round a value to float32, as a file stores it."""
    return float(np.float32(value))


ROWS: Final = {
    "gemma": Architecture(
        "gemma",
        "GemmaForCausalLM",
        keys=RMS,
        constants={"hidden_act": "gelu_pytorch_tanh", **UNBIASED},
        norm_offset=1.0,
    ),
    "gemma2": Architecture(
        "gemma2",
        "Gemma2ForCausalLM",
        keys={
            **RMS,
            **WINDOW,
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        constants=GELU,
        names=BEFORE_AND_BEHIND,
        norm_offset=1.0,
        adjust=gemma2,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        keys={**RMS, **WINDOW, "final_logit_softcapping": "final_logit_softcapping"},
        constants=GELU,
        names=BEFORE_AND_BEHIND,
        norm_offset=1.0,
        adjust=gemma3,
    ),
    "phi3": Architecture("phi3", "Phi3ForCausalLM", keys={**RMS, **WINDOW}, constants=SILU, rotary="part", adjust=phi3),
    "olmo": Architecture(
        "olmo",
        "OlmoForCausalLM",
        keys={"attention.clamp_kqv": "clip_qkv"},
        constants={**SILU, **UNBIASED, "clip_qkv": None},
        paired=True,
        adjust=olmo,
    ),
    "olmo2": Architecture(
        "olmo2", "Olmo2ForCausalLM", keys={**RMS, **WINDOW}, constants={**SILU, **UNBIASED}, adjust=olmo2_or_3
    ),
    "command-r": Architecture(
        "cohere",
        "CohereForCausalLM",
        keys={**LAYER_EPS, "logit_scale": "logit_scale"},
        constants=SILU,
        present={"attention_bias": ATTENTION_BIASES},
        adjust=cohere,
    ),
    "cohere2": Architecture(
        "cohere2",
        "Cohere2ForCausalLM",
        keys={**LAYER_EPS, **WINDOW, "logit_scale": "logit_scale"},
        constants={**SILU, **UNBIASED},
        adjust=every_fourth,
    ),
    "exaone4": Architecture(
        "exaone4", "Exaone4ForCausalLM", keys={**RMS, **WINDOW}, constants=SILU, adjust=every_fourth
    ),
    "glm4": Architecture(
        "glm4",
        "Glm4ForCausalLM",
        keys=RMS,
        constants=SILU,
        present={"attention_bias": QKV_BIASES},
        names=BEFORE_AND_BEHIND,
        rotary="part",
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        "GptOssForCausalLM",
        keys={
            **RMS,
            **WINDOW,
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "intermediate_size",
        },
        constants={"attention_bias": True},
        adjust=gpt_oss,
    ),
    "nemotron": Architecture(
        "nemotron",
        "NemotronForCausalLM",
        keys={"attention.layer_norm_epsilon": "norm_eps"},
        constants={"hidden_act": "relu2", "mlp_bias": False, **UNBIASED},
        norm_offset=1.0,
        rotary="part",
        neutral={"attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon says it"},
    ),
}
