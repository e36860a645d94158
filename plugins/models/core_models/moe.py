"""Llamas with experts: Mixtral, Qwen, OLMoE, Granite, ERNIE and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import EXPERTS, NEVER, Family, HeadNorm
from core_runtime.models.weight_rules import Ignored, Rename, Stacked, WeightRule, experts, modules
from core_runtime.specs.block_spec import BlockSpec

GRANITE_SCALARS = {
    "embed": "embedding_multiplier",
    "residual": "residual_multiplier",
    "attention": "attention_multiplier",
    "logits": "1/logits_scaling",
}
GRANITE_SHARED = modules(
    ("shared_mlp.input_linear", "mlp.shared_experts.gate_up_proj"),
    ("shared_mlp.output_linear", "mlp.shared_experts.down_proj"),
)
GRANITE_WEIGHTS: tuple[WeightRule, ...] = (
    *modules(("block_sparse_moe.router.layer", "mlp.gate"), ("block_sparse_moe", "mlp")),
    *GRANITE_SHARED,
    *experts("mlp", r"input_linear\.weight", r"output_linear\.weight"),
)
GRANITE_SWA_WEIGHTS: tuple[WeightRule, ...] = (
    *modules(("block_sparse_moe.router", "mlp.gate"), ("block_sparse_moe", "mlp")),
    *GRANITE_SHARED,
    Rename(r"\.mlp\.experts\.(gate_up_proj|down_proj)$", r".mlp.\1"),
    *experts("mlp", "gate_up_proj", "down_proj"),
)
QWEN_STACKED: tuple[WeightRule, ...] = (
    Rename(r"\.mlp\.experts\.(gate_up_proj|down_proj)$", r".mlp.\1"),
    *experts("mlp", "gate_up_proj", "down_proj", transposed=None),
)
"""Rules for Qwen3-VL's experts. Published checkpoints have gate and up as columns; those that transformers saves have
them as rows.
"""


def qwen2_windows(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration with `layer_types`: without a list, every other one of the first layers slides."""
    config = configuration(given)
    last = config.count("max_window_layers")
    kinds = config.list_of("layer_types", str)
    if "sliding_attention" in kinds and not config.flag("use_sliding_window"):
        config.fail("layer_types", kinds, "no sliding layers without use_sliding_window")
    return _with_windows(config, lambda index: index < last and index % 2 == 0)


def _with_windows(config: Configuration, slides: Callable[[int], bool]) -> Configuration:
    """Return the configuration with `layer_types`; if it has none, `slides` decides for each layer."""
    if config.get("layer_types") is not None:
        return config
    kinds = []
    for index in range(config.positive("num_hidden_layers")):
        kinds.append("sliding_attention" if slides(index) else "full_attention")
    return config.overlaid({"layer_types": kinds})


def granite_rope(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Set the base of each layer's rotary embedding; 0: the layer has none."""
    config = configuration(hf_config)
    bases = config.list_of("layer_rope_theta", float, config.positive("num_hidden_layers"))
    if not bases or block.rope is None:
        return block
    base = bases[index]
    rope = msgspec.structs.replace(block.rope, theta=float(base)) if base else None
    return msgspec.structs.replace(block, rope=rope)


ROWS = (
    Family(
        name="mixtral",
        model_types=("mixtral",),
        architectures=("MixtralForCausalLM",),
        full_every=NEVER,
        eps_default=1e-5,
        expert_names=("block_sparse_moe", "w1", "w3", "w2"),
    ),
    Family(
        name="qwen2_moe",
        model_types=("qwen2_moe",),
        architectures=("Qwen2MoeForCausalLM",),
        usual=qwen2_windows,
        windowed="use_sliding_window",
        biases={"query": "qkv_bias", "key": "qkv_bias", "value": "qkv_bias", "out": False},
        expert_names=EXPERTS,
        renormalize=False,
        experts={"shared_gate": True},
        weights=modules(("mlp.shared_expert", "mlp.shared_experts")),
    ),
    Family(
        name="qwen3_moe",
        model_types=("qwen3_moe",),
        architectures=("Qwen3MoeForCausalLM",),
        qk_norm=True,
        windowed="use_sliding_window",
        full_every=NEVER,
        neutral={"max_window_layers": "its windows are of all layers"},
        expert_names=EXPERTS,
        renormalize=False,
    ),
    Family(
        name="qwen3_vl_moe",
        model_types=("qwen3_vl_moe_text",),
        architectures=("Qwen3VLMoeForConditionalGeneration",),
        wrappers=("qwen3_vl_moe",),
        neutral={
            "rope_parameters.mrope_section": "the three positions of text are one",
            "rope_parameters.mrope_interleaved": "the three positions of text are one",
            "rope_scaling.mrope_section": "the three positions of text are one",
            "rope_scaling.mrope_interleaved": "the three positions of text are one",
            "norm_topk_prob = true": "the only way",
            "sliding_window": "its layers see everything",
        },
        qk_norm=True,
        expert_names=EXPERTS,
        weights=QWEN_STACKED,
    ),
    Family(
        name="olmoe",
        model_types=("olmoe",),
        architectures=("OlmoeForCausalLM",),
        qk_norm=HeadNorm(over="all"),
        clip="clip_qkv",
        expert_names=EXPERTS,
        renormalize=False,
    ),
    Family(
        name="flex_olmo",
        model_types=("flex_olmo",),
        architectures=("FlexOlmoForCausalLM",),
        order="post",
        qk_norm=HeadNorm(over="all"),
        expert_names=EXPERTS,
        renormalize=False,
    ),
    Family(
        name="granitemoe",
        model_types=("granitemoe",),
        architectures=("GraniteMoeForCausalLM",),
        scalars=GRANITE_SCALARS,
        expert_names=EXPERTS,
        weights=GRANITE_WEIGHTS,
    ),
    Family(
        name="granitemoeshared",
        model_types=("granitemoeshared",),
        architectures=("GraniteMoeSharedForCausalLM",),
        scalars=GRANITE_SCALARS,
        fused_gate_up=True,
        expert_names=EXPERTS,
        weights=GRANITE_WEIGHTS,
    ),
    Family(
        name="granite_swa",
        model_types=("granite_swa",),
        architectures=("GraniteSWAForCausalLM",),
        tied_by_default=True,
        scalars=GRANITE_SCALARS,
        full_every=4,
        first_full=True,
        sinks=True,
        block=granite_rope,
    ),
    Family(
        name="granitemoe_swa",
        model_types=("granitemoe_swa",),
        architectures=("GraniteMoeSWAForCausalLM",),
        scalars=GRANITE_SCALARS,
        full_every=4,
        first_full=True,
        sinks=True,
        fused_gate_up=True,
        expert_names=EXPERTS,
        weights=GRANITE_SWA_WEIGHTS,
        block=granite_rope,
    ),
    Family(
        name="ernie4_5_moe",
        model_types=("ernie4_5_moe",),
        architectures=("Ernie4_5_MoeForCausalLM", "Ernie4_5_MoEForCausalLM"),
        keys={
            "num_shared_experts": "moe_num_shared_experts",
            "first_k_dense_replace": "moe_layer_start_index",
            "decoder_sparse_step": "moe_layer_interval",
        },
        tied_by_default=True,
        biases={part: "use_bias" for part in ("query", "key", "value", "out", "mlp", "head")},
        interleaved=True,
        expert_names=EXPERTS,
        routing="corrected_softmax",
        weights=(
            Ignored(r"model\.mtp_.*", "layers that draft"),
            Stacked(  # it has an axis of size one for groups of experts
                r"(model\.layers\.\d+\.mlp)\.moe_statics\.e_score_correction_bias",
                r"\1.gate.e_score_correction_bias",
                ("",),
            ),
        ),
    ),
    Family(
        name="hunyuan_v1_moe",
        model_types=("hunyuan_v1_moe",),
        architectures=("HunYuanMoEV1ForCausalLM",),
        fixed={"num_shared_experts": 1},
        qk_norm=HeadNorm(after_rope=True),
        expert_names=EXPERTS,
        weights=modules(
            ("mlp.gate.wg", "mlp.gate"),
            ("mlp.shared_mlp", "mlp.shared_experts"),
            ("self_attn.query_layernorm", "self_attn.q_norm"),
            ("self_attn.key_layernorm", "self_attn.k_norm"),
        ),
    ),
    Family(
        name="minimax_m2",
        model_types=("minimax_m2",),
        architectures=("MiniMaxM2ForCausalLM",),
        qk_norm=HeadNorm(over="all"),
        expert_names=("block_sparse_moe", "w1", "w3", "w2"),
        routing="corrected_sigmoid",
        weights=modules(("block_sparse_moe.e_score_correction_bias", "block_sparse_moe.gate.e_score_correction_bias")),
    ),
    Family(
        name="mellum",
        model_types=("mellum",),
        architectures=("MellumForCausalLM",),
        defaults={"rope_theta": 500000.0, "rope_local_base_freq": 10000.0},
        neutral={"rope_parameters.sliding_attention*": "read where a layer slides"},
        qk_norm=True,
        expert_names=EXPERTS,
        weights=(Ignored(r"mtp\..*", "layers that draft"),),
    ),
    Family(
        name="aria",
        model_types=("aria_text",),
        architectures=("AriaTextForCausalLM",),
        keys={
            "num_experts": "moe_num_experts",
            "num_experts_per_tok": "moe_topk",
            "num_shared_experts": "moe_num_shared_experts",
        },
        expert_names=EXPERTS,
        experts={"activation": "silu"},  # independent of the shared expert's
        weights=(
            *modules(("mlp.router", "mlp.gate")),
            Rename(r"\.mlp\.experts\.(fc[12])\.weight$", r".mlp.\1"),
            *experts("mlp", "fc1", "fc2", transposed=True),
        ),
    ),
)
