"""Llama, and architectures with small differences from it."""

from __future__ import annotations

import math
from typing import Final

from core_loaders.gguf.architectures import Architecture, Config
from core_loaders.gguf.keys import RMS
from core_loaders.gguf.names import Names
from core_loaders.gguf.source import Source

ATTENTION_BIASES: Final = ("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias")
QKV_BIASES: Final = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
SILU: Final = {"hidden_act": "silu"}
UNBIASED: Final = {"attention_bias": False}
MIXTRAL: Final = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "sliding_window": None}
SCALES: Final = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}
"""Granite's scale factors."""
MIXTRAL_NAMES: Final = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "exp_probs_b.bias": "block_sparse_moe.gate.e_score_correction_bias",
    "ffn_gate_exps": "block_sparse_moe.experts.*.w1",
    "ffn_up_exps": "block_sparse_moe.experts.*.w3",
    "ffn_down_exps": "block_sparse_moe.experts.*.w2",
}
UNSCALED: Final = {"embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0}


def llama_or_mixtral(source: Source, config: Config) -> None:
    """Select Mixtral when the file has experts."""
    experts = config.pop("num_local_experts", 0)
    used = config.pop("num_experts_per_tok", 0)
    if not experts:
        return
    del config["mlp_bias"]
    config.update(MIXTRAL, num_local_experts=experts, num_experts_per_tok=used)
    if config.pop("attention_bias"):
        raise source.fail("has biases of attention beside experts, which no known model has.")


def llama_names(source: Source) -> Names:
    """Return the names of experts' tensors, if there are any."""
    return MIXTRAL_NAMES if source.metadata.values.get(source.key("expert_count")) else {}


def minicpm(source: Source, config: Config) -> None:
    """Read the scalars, which are stored multiplied out; files without them get the values of the models of that time."""
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    residual = source.number("residual_scale", 0.0, 1e6, 1.4 / math.sqrt(layers))
    logits = source.number("logit_scale", 0.0, 1e6, hidden / 256)
    config["scale_emb"] = source.number("embedding_scale", 0.0, 1e6, 12.0)
    config["scale_depth"] = residual * math.sqrt(layers)
    config["dim_model_base"] = hidden / logits


def granite(source: Source, config: Config) -> None:
    """Use the usual scale of scores where the file has none."""
    config.setdefault("attention_multiplier", 1.0 / math.sqrt(config["head_dim"]))


def exaone(source: Source, config: Config) -> None:
    """Translate as a llama; the norms' epsilon may have either norm's key."""
    older = "attention.layer_norm_epsilon"
    config["rms_norm_eps"] = source.value(older if older in source else "attention.layer_norm_rms_epsilon")


def qwen2vl(source: Source, config: Config) -> None:
    """Read how many rotary pairs turn by time, height and width; a fourth number, of nothing, is 0."""
    sections = source.metadata.items(source.key("rope.dimension_sections"), int)
    if len(sections) != 4 or sections[3] or min(sections) < 0 or 2 * sum(sections) != config["head_dim"]:
        raise source.fail(f"has rotary sections {sections!r:.60}; expected three that fill half a head, and 0.")
    config["rope_scaling"] = {"rope_type": "default", **config.get("rope_scaling", {}), "mrope_section": sections[:3]}


def smollm3(source: Source, config: Config) -> None:
    """Disable rotation in every fourth layer, which the format implies."""
    config["no_rope_layers"] = [int((index + 1) % 4 != 0) for index in range(config["num_hidden_layers"])]


ROWS: Final = {
    "llama": Architecture(
        "llama",
        "LlamaForCausalLM",
        keys={**RMS, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        constants={**SILU, "mlp_bias": False},
        present={"attention_bias": ATTENTION_BIASES},
        names=llama_names,
        paired=True,
        adjust=llama_or_mixtral,
    ),
    "internlm2": Architecture(
        "llama",
        "LlamaForCausalLM",
        keys=RMS,
        constants={**SILU, "mlp_bias": False},
        present={"attention_bias": ATTENTION_BIASES},
        paired=True,
    ),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", keys=RMS, constants={**SILU, "use_sliding_window": False}),
    "qwen2vl": Architecture(
        "qwen2_vl_text",
        "Qwen2VLForConditionalGeneration",
        keys=RMS,
        constants={**SILU, "use_sliding_window": False},
        adjust=qwen2vl,
    ),
    "qwen3": Architecture(
        "qwen3", "Qwen3ForCausalLM", keys=RMS, constants={**SILU, **UNBIASED, "use_sliding_window": False}
    ),
    "seed_oss": Architecture(
        "seed_oss",
        "SeedOssForCausalLM",
        keys=RMS,
        constants={**SILU, "mlp_bias": False},
        present={"attention_bias": QKV_BIASES, "attention_out_bias": ("attn_output.bias",)},
        names={"post_attention_norm": "post_attention_layernorm"},
    ),
    "smollm3": Architecture(
        "smollm3",
        "SmolLM3ForCausalLM",
        keys=RMS,
        constants={**SILU, **UNBIASED, "mlp_bias": False, "use_sliding_window": False},
        paired=True,
        adjust=smollm3,
    ),
    "ernie4_5": Architecture(
        "ernie4_5",
        "Ernie4_5ForCausalLM",
        keys=RMS,
        constants=SILU,
        present={"use_bias": ATTENTION_BIASES},
    ),
    "hunyuan-dense": Architecture(
        "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", keys=RMS, constants={**SILU, **UNBIASED}
    ),
    "arcee": Architecture(
        "arcee",
        "ArceeForCausalLM",
        keys=RMS,
        constants={"hidden_act": "relu2", **UNBIASED, "mlp_bias": False},
        paired=True,
    ),
    "exaone": Architecture(
        "llama", "LlamaForCausalLM", constants={**SILU, **UNBIASED, "mlp_bias": False}, adjust=exaone
    ),
    "minicpm": Architecture(
        "minicpm",
        "MiniCPMForCausalLM",
        keys=RMS,
        constants=SILU,
        paired=True,
        adjust=minicpm,
    ),
    "granite": Architecture(
        "granite",
        "GraniteForCausalLM",
        keys={**RMS, **SCALES},
        constants={**SILU, **UNSCALED, "mlp_bias": False},
        present={"attention_bias": ATTENTION_BIASES},
        paired=True,
        adjust=granite,
        neutral={"rope.scaling.finetuned": "says that rotary embedding is used at all"},
    ),
}
