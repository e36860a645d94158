"""Architectures with experts."""

from __future__ import annotations

from typing import Final

from core_loaders.gguf.architectures import Architecture, Config
from core_loaders.gguf.keys import MAX_EXTENT, MAX_HEAD_SIZE, MOE, RMS
from core_loaders.gguf.rows.llamas import (
    ATTENTION_BIASES,
    MIXTRAL_NAMES,
    QKV_BIASES,
    SCALES,
    SILU,
    UNBIASED,
    UNSCALED,
    granite,
)
from core_loaders.gguf.source import Source

INNER: Final = {"expert_feed_forward_length": "moe_intermediate_size"}
SHARED: Final = {"expert_shared_count": "n_shared_experts"}
ROUTED: Final = {
    **SHARED,
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "leading_dense_block_count": "first_k_dense_replace",
}
"""Keys of DeepSeek and its relatives."""
PLAIN_ROUTING: Final = {
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 0,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": False,
    "first_k_dense_replace": 0,
}
"""Defaults for absent keys."""
SOFTMAX: Final = 1
SIGMOID: Final = 2


def gating(source: Source, usual: int) -> int:
    """Return how scores become weights. Raises CheckpointError for an unknown way."""
    function = source.integer("expert_gating_func", 0, 16, 0) or usual
    if function not in (SOFTMAX, SIGMOID):
        raise source.fail(f"metadata key '{source.key('expert_gating_func')}' is {function}; expected 1 or 2.")
    return function


def inner_size(source: Source, config: Config) -> None:
    """Set the size of an expert; in older files it comes from the tensors."""
    if "moe_intermediate_size" in config:
        return
    for name, tensor in source.tensors.items():
        if name.endswith(".ffn_down_exps.weight"):
            config["moe_intermediate_size"] = tensor.shape[-1]
            return


def qwen2_moe(source: Source, config: Config) -> None:
    """Leave the experts' weights unnormalized; older files lack both inner sizes."""
    inner_size(source, config)
    shared = source.tensors.get("blk.0.ffn_down_shexp.weight")
    if "shared_expert_intermediate_size" not in config and shared is not None:
        config["shared_expert_intermediate_size"] = shared.shape[-1]


def granite_moe(source: Source, config: Config) -> None:
    """Select the other model type when there is a shared expert."""
    granite(source, config)
    shared = config.get("shared_intermediate_size", 0)
    if shared:
        config.update(model_type="granitemoeshared", architectures=["GraniteMoeSharedForCausalLM"])
    else:
        config.pop("shared_intermediate_size", None)


def deepseek(source: Source, config: Config) -> None:
    """Translate latent attention; biases of experts identify the third version, which scores by sigmoid."""
    _latent_sizes(source, config)
    _yarn_of_deepseek(source, config)
    if not config.get("n_routed_experts"):
        raise source.fail("has no experts, which this architecture is only read with.")
    inner_size(source, config)
    biased = any(name.endswith(".exp_probs_b.bias") for name in source.tensors)
    function = gating(source, SIGMOID if biased else SOFTMAX)
    if biased != (function == SIGMOID):
        raise source.fail("has biases of experts with scores by softmax, or none with scores by sigmoid.")
    if biased:
        config.update(model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"])
    else:
        config["topk_method"] = "group_limited_greedy" if config["n_group"] > 1 else "greedy"


def _latent_sizes(source: Source, config: Config) -> None:
    rope = source.integer("rope.dimension_count", 2, MAX_HEAD_SIZE)
    key = source.integer("attention.key_length", 1, MAX_EXTENT)
    value = source.integer("attention.value_length", 1, MAX_EXTENT)
    if "attention.key_length_mla" in source:  # the other lengths then describe the form with one key head
        key = source.integer("attention.key_length_mla", 1, MAX_HEAD_SIZE)
        value = source.integer("attention.value_length_mla", 1, MAX_HEAD_SIZE)
    if key <= rope:
        raise source.fail(f"has heads of {key} numbers, of which {rope} rotate; expected more that do not.")
    del config["head_dim"]
    config["num_key_value_heads"] = config["num_attention_heads"]
    config.update(qk_rope_head_dim=rope, qk_nope_head_dim=key - rope, v_head_dim=value)
    config.setdefault("q_lora_rank", None)


def _yarn_of_deepseek(source: Source, config: Config) -> None:
    """Recover `mscale_all_dim`: the file stores a tenth of it, and `mscale` equals it in every model."""
    multiplier = source.number("rope.scaling.yarn_log_multiplier", 0.0, 1e3, 0.0)
    scaling = config.get("rope_scaling")
    if multiplier and scaling is not None:
        mscale = round(multiplier * 10, 6)
        scaling.update(mscale=mscale, mscale_all_dim=mscale)


def corrected(source: Source, config: Config) -> None:
    """Translate experts chosen with a bias and scored by sigmoid."""
    if gating(source, SIGMOID) != SIGMOID:
        raise source.fail("scores experts by softmax; expected sigmoid for this architecture.")
    inner_size(source, config)


def glm4_moe(source: Source, config: Config) -> None:
    """Detect head norms, which depend on the model's size; draft layers are dropped."""
    corrected(source, config)
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in source.tensors


def minimax(source: Source, config: Config) -> None:
    """Put experts of the single inner size into every layer."""
    corrected(source, config)
    config["intermediate_size"] = config.pop("moe_intermediate_size", config["intermediate_size"])


def ernie_moe(source: Source, config: Config) -> None:
    """Put experts into every n-th layer, starting from the first that has them."""
    config["moe_layer_interval"] = source.integer("interleave_moe_layer_step", 1, 4096, 1)
    config["moe_layer_end_index"] = -1
    source.integer("expert_shared_feed_forward_length", 0, 1 << 24, 0)  # the number of experts determines it


ROWS: Final = {
    "qwen2moe": Architecture(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        keys={**RMS, **MOE, **INNER, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        constants={**SILU, "use_sliding_window": False, "norm_topk_prob": False},
        present={"qkv_bias": QKV_BIASES},
        adjust=qwen2_moe,
    ),
    "qwen3moe": Architecture(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        keys={**RMS, **MOE, **INNER},
        constants={**SILU, **UNBIASED, "use_sliding_window": False, "norm_topk_prob": True},
        adjust=inner_size,
    ),
    "olmoe": Architecture(
        "olmoe",
        "OlmoeForCausalLM",
        keys={**RMS, **MOE, "attention.clamp_kqv": "clip_qkv"},
        constants={**SILU, **UNBIASED, "clip_qkv": None, "norm_topk_prob": False},
    ),
    "granitemoe": Architecture(
        "granitemoe",
        "GraniteMoeForCausalLM",
        keys={
            **RMS,
            **SCALES,
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_shared_feed_forward_length": "shared_intermediate_size",
        },
        constants={**SILU, **UNSCALED},
        present={"attention_bias": ATTENTION_BIASES},
        paired=True,
        adjust=granite_moe,
        neutral={"rope.scaling.finetuned": "says that rotary embedding is used at all"},
    ),
    "deepseek2": Architecture(
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        keys={
            **RMS,
            **ROUTED,
            **INNER,
            "attention.kv_lora_rank": "kv_lora_rank",
            "attention.q_lora_rank": "q_lora_rank",
        },
        constants={**SILU, **UNBIASED, **PLAIN_ROUTING},
        adjust=deepseek,
        rotary="latent",
    ),
    "glm4moe": Architecture(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        keys={**RMS, **ROUTED, **INNER},
        constants={**SILU, **PLAIN_ROUTING},
        present={"attention_bias": QKV_BIASES},
        rotary="part",
        adjust=glm4_moe,
    ),
    "dots1": Architecture(
        "dots1",
        "Dots1ForCausalLM",
        keys={**RMS, **ROUTED, **INNER},
        constants={**SILU, **UNBIASED, **PLAIN_ROUTING},
        adjust=corrected,
    ),
    "minimax-m2": Architecture(
        "minimax_m2",
        "MiniMaxM2ForCausalLM",
        keys={**RMS, **INNER, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        constants=SILU,
        names=MIXTRAL_NAMES,
        rotary="part",
        adjust=minimax,
    ),
    "ernie4_5-moe": Architecture(
        "ernie4_5_moe",
        "Ernie4_5_MoeForCausalLM",
        keys={
            **RMS,
            **INNER,
            "expert_count": "moe_num_experts",
            "expert_used_count": "moe_k",
            "expert_shared_count": "moe_num_shared_experts",
            "leading_dense_block_count": "moe_layer_start_index",
        },
        constants={**SILU, "moe_num_shared_experts": 0, "moe_layer_start_index": 0},
        present={"use_bias": ATTENTION_BIASES},
        adjust=ernie_moe,
    ),
}
