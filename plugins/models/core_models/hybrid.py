"""Hybrid families: attention and layers with a state, side by side or alternating."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core.api.errors import UserError
from core.api.specs import AttentionSpec, StateSpec
from core_models.mamba import WEIGHTS
from core_runtime.models.configuration import configuration
from core_runtime.models.families.row import Family, HeadNorm
from core_runtime.models.state_layers import delta, mamba1, mamba2, values
from core_runtime.models.weight_rules import Ignored, Rename, WeightRule, experts, modules
from core_runtime.specs.block_spec import BlockSpec, HeadsSpec
from core_runtime.specs.decoder_spec import DecoderSpec

EXPERTS: Final = ("mlp", "gate_proj", "up_proj", "down_proj")
FEED_FORWARD: Final = modules(
    ("feed_forward.router", "mlp.gate"),
    ("feed_forward", "mlp"),
    ("mamba", "mixer"),
    ("pre_ff_layernorm", "post_attention_layernorm"),
    ("model.final_layernorm", "model.norm"),
)
"""Module names that Jamba, Bamba and Falcon-H1 share."""
COMPUTING: Final = {
    "residual_in_fp32": "the residual stream has the type of activations",
    "chunk_size": "the same numbers in pieces",
}


def jamba(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return Jamba's configuration with its layers with experts as a list of the layers without."""
    config = configuration(hf_config)
    period = config.positive("expert_layer_period")
    offset = config.count("expert_layer_offset")
    layers = range(config.positive("num_hidden_layers"))
    sparse = config.positive("num_experts") > 1
    plain = [index for index in layers if not sparse or index % period != offset]
    return config.overlaid({"mlp_only_layers": plain})


def granite(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return Granite's configuration: without experts, the shared expert is the MLP."""
    config = configuration(hf_config)
    if config.count("num_local_experts"):
        return config
    return config.overlaid({"intermediate_size": config.positive("shared_intermediate_size")})


def granite_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Remove the rotary embedding unless `position_embedding_type` is `rope`."""
    if hf_config.get("position_embedding_type") == "rope":
        return block
    return msgspec.structs.replace(block, rope=None)


def granite_weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rules for `shared_mlp`, the shared expert; in a model without other experts it is the MLP."""
    shared = "mlp.shared_experts" if configuration(hf_config).count("num_local_experts") else "mlp"
    return (
        *modules(
            ("shared_mlp.input_linear", f"{shared}.gate_up_proj"),
            ("shared_mlp.output_linear", f"{shared}.down_proj"),
            ("block_sparse_moe.router.layer", "mlp.gate"),
            ("block_sparse_moe", "mlp"),
            ("mamba", "mixer"),
        ),
        *experts("mlp", r"input_linear\.weight", r"output_linear\.weight"),
    )


def nemotron(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return Nemotron-H's configuration with its layers as `layer_types`, from a list or the letters of a pattern, and
    the activation of its MLPs.
    """
    config = configuration(hf_config)
    kinds = config.list_of("layer_types", str)
    if not kinds and config.get("hybrid_override_pattern") is not None:
        letters = config.text("hybrid_override_pattern")
        unknown = set(letters) - mamba2.NEMOTRON_LETTERS.keys()
        if unknown:
            config.fail("hybrid_override_pattern", letters, f"letters of {', '.join(mamba2.NEMOTRON_LETTERS)}")
        kinds = [mamba2.NEMOTRON_LETTERS[letter] for letter in letters]
    if not kinds:
        kinds = ["mamba", "moe", "attention", "mlp"]
    activation = config.text("mlp_hidden_act")
    return config.overlaid({"layer_types": kinds, "num_hidden_layers": len(kinds), "hidden_act": activation})


def nemotron_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Return half of a usual block: a mixer, an MLP or experts."""
    kind = hf_config["layer_types"][index]
    if kind == "mlp":
        return BlockSpec(None)
    if kind == "moe":
        return BlockSpec(None, experts=block.experts)
    if kind not in ("attention", "full_attention", *values.LINEAR):
        configuration(hf_config).fail("layer_types", kind, "mamba, attention, mlp or moe")
    return msgspec.structs.replace(block, experts=None, has_mlp=False)


def falcon_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Apply the multipliers of attention and of the state next to it.

    The multiplier of the attention's input becomes part of the scale of scores and of the output.
    """
    before = values.number(hf_config, "attention_in_multiplier", 1.0)
    keys = values.number(hf_config, "key_multiplier", 1.0)
    behind = values.number(hf_config, "attention_out_multiplier", 1.0)
    if before != 1 and hf_config.get("attention_bias"):
        raise UserError(
            f"attention_in_multiplier is {before} and attention_bias is true in the model's configuration; expected a "
            "multiplier of 1, or attention without biases."
        )
    assert isinstance(block.mixer, AttentionSpec)
    attention = msgspec.structs.replace(block.mixer, scale=block.mixer.scale * before * before * keys)
    return msgspec.structs.replace(
        block,
        mixer=attention,
        mixer_scale=before * behind,
        beside_scale=values.number(hf_config, "ssm_out_multiplier", 1.0),
    )


def falcon_mlp(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Apply the multipliers of the MLP."""
    gate, out = values.numbers(hf_config, "mlp_multipliers", (1.0, 1.0))
    if out != 1 and spec.mlp.down_bias:
        raise UserError(
            f"the second of mlp_multipliers is {out} and mlp_bias is true in the model's configuration; expected a "
            "multiplier of 1, or an MLP without biases."
        )
    mlp = msgspec.structs.replace(spec.mlp, gate_scale=gate, out_scale=out)
    return msgspec.structs.replace(spec, mlp=mlp)


def olmo_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Set the norms of layers with a state, which precede them. Where `rope_theta` is null, there is no rotary
    embedding.
    """
    if isinstance(block.mixer, StateSpec):
        return msgspec.structs.replace(block, order="pre")
    rope = configuration(hf_config).mapping("rope_parameters")
    if "rope_theta" in rope and rope["rope_theta"] is None:
        return msgspec.structs.replace(block, rope=None)
    return block


def kimi_weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return rules that distinguish layers with a state from layers with attention, which share names. Dense MLPs have
    two names.
    """
    config = configuration(hf_config)
    layers = range(config.positive("num_hidden_layers"))
    mixers = [str(index) for index in layers if delta.kimi_linear(config, index) is not None]
    return (
        Rename(rf"^(model\.layers\.({'|'.join(mixers)}))\.self_attn\.", r"\1.mixer."),
        *modules(("mixer.o_proj", "mixer.out_proj"), ("block_sparse_moe", "mlp")),
    )


QWEN_WEIGHTS: Final = (
    *modules(("linear_attn", "mixer"), ("mlp.shared_expert", "mlp.shared_experts")),
    *experts("mlp", r"experts\.gate_up_proj", r"experts\.down_proj"),
    Ignored(r"mtp\..*", "layers that draft"),
)
QWEN_NEUTRAL: Final = {
    "full_attention_interval": "layer_types says it",
    "rope_parameters.mrope_*": "text has one position a token",
    "mamba_ssm_dtype": "states are float32",
    "attn_output_gate = true": "the only way",
}

ROWS = (
    Family(
        name="jamba",
        model_types=("jamba",),
        architectures=("JambaForCausalLM",),
        neutral={**COMPUTING, "head_dim": "heads divide the hidden size"},
        usual=jamba,
        rotary=False,
        state=mamba1.jamba,
        expert_names=EXPERTS,
        renormalize=False,
        weights=FEED_FORWARD,
    ),
    Family(
        name="bamba",
        model_types=("bamba",),
        architectures=("BambaForCausalLM",),
        defaults={"partial_rotary_factor": 0.5},
        neutral=COMPUTING,
        state=mamba2.bamba,
        weights=FEED_FORWARD,
    ),
    Family(
        name="granitemoehybrid",
        model_types=("granitemoehybrid",),
        architectures=("GraniteMoeHybridForCausalLM",),
        neutral=COMPUTING,
        usual=granite,
        scalars={
            "embed": "embedding_multiplier",
            "residual": "residual_multiplier",
            "attention": "attention_multiplier",
            "logits": "1/logits_scaling",
        },
        state=mamba2.granitemoehybrid,
        block=granite_block,
        fused_gate_up=True,
        expert_names=EXPERTS,
        weights=granite_weights,
    ),
    Family(
        name="nemotron_h",
        model_types=("nemotron_h",),
        architectures=("NemotronHForCausalLM",),
        keys={"shared_expert_intermediate_size": "moe_shared_expert_intermediate_size"},
        neutral={
            **COMPUTING,
            "num_hidden_layers": "the list of layers has as many",
            "n_shared_experts": "moe_shared_expert_intermediate_size says it",
            "expand": "heads have sizes of their own",
            "mamba_ssm_cache_dtype": "states are float32",
            "attention_bias": "attention has no biases",
            "mamba_proj_bias": "use_bias says it",
            "sliding_window": "attention sees everything",
            "time_step_limit": "time_step_min says it",
        },
        usual=nemotron,
        rotary=False,
        state=mamba2.nemotron_h,
        block=nemotron_block,
        gated=False,
        expert_names=EXPERTS,
        experts={"gated": False},
        routing="corrected_sigmoid",
        weights=(
            *WEIGHTS,
            Rename(r"\.mixer\.([qkvo]_proj)\.", r".self_attn.\1."),
            Rename(r"\.mixer\.(gate|experts|shared_experts|up_proj|down_proj)\.", r".mlp.\1."),
            Ignored(r"mtp\..*", "layers that draft"),
        ),
    ),
    Family(
        name="falcon_h1",
        model_types=("falcon_h1",),
        architectures=("FalconH1ForCausalLM",),
        neutral=COMPUTING,
        scalars={"embed": "embedding_multiplier", "logits": "lm_head_multiplier"},
        state=mamba2.falcon_h1,
        side_by_side=True,
        block=falcon_block,
        adjust=falcon_mlp,
        weights=FEED_FORWARD,
    ),
    Family(
        name="qwen3_next",
        model_types=("qwen3_next",),
        architectures=("Qwen3NextForCausalLM",),
        neutral=QWEN_NEUTRAL,
        norm_offset=1.0,
        qk_norm=True,
        heads=HeadsSpec(gate="query"),
        state=delta.qwen3_next,
        expert_names=EXPERTS,
        experts={"shared_gate": True},
        weights=QWEN_WEIGHTS,
    ),
    Family(
        name="qwen3_5",
        model_types=("qwen3_5_text",),
        architectures=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        wrappers=("qwen3_5",),
        neutral=QWEN_NEUTRAL,
        norm_offset=1.0,
        qk_norm=True,
        heads=HeadsSpec(gate="query"),
        state=delta.qwen3_5,
        weights=QWEN_WEIGHTS,
    ),
    Family(
        name="qwen3_5_moe",
        model_types=("qwen3_5_moe_text",),
        architectures=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
        wrappers=("qwen3_5_moe",),
        keys={"intermediate_size": "moe_intermediate_size"},  # no layer has a plain MLP
        neutral=QWEN_NEUTRAL,
        norm_offset=1.0,
        qk_norm=True,
        heads=HeadsSpec(gate="query"),
        state=delta.qwen3_5,
        expert_names=EXPERTS,
        experts={"shared_gate": True},
        weights=QWEN_WEIGHTS,
    ),
    Family(
        name="olmo_hybrid",
        model_types=("olmo_hybrid",),
        architectures=("OlmoHybridForCausalLM",),
        neutral={"linear_a_log_*": "weights are loaded", "linear_dt_*": "weights are loaded"},
        order="post",
        qk_norm=HeadNorm(over="all"),
        state=delta.olmo_hybrid,
        block=olmo_block,
        weights=modules(
            ("linear_attn.o_norm", "linear_attn.norm"),
            ("linear_attn.o_proj", "linear_attn.out_proj"),
            ("linear_attn", "mixer"),
            ("attention_layer_norm", "input_layernorm"),
            ("feedforward_layer_norm", "post_attention_layernorm"),
        ),
    ),
    Family(
        name="kimi_linear",
        model_types=("kimi_linear",),
        architectures=("KimiLinearForCausalLM",),
        defaults={"first_k_dense_replace": 1},
        neutral={
            "head_dim": "the parts of heads have sizes of their own",
            "num_key_value_heads": "every head has keys of its own",
            "qk_head_dim": "the sum of two other sizes",
            "rope_*": "positions turn nothing",
            "linear_attn_config.kda_layers": "all but full_attn_layers",
            "mla_use_nope = true": "the only way",
            "moe_layer_freq = 1": "every layer has experts from the first one on",
            'moe_router_activation_func = "sigmoid"': "the only way",
            "use_grouped_topk = true": "one group is no groups",
        },
        latent=True,
        rotary=False,
        state=delta.kimi_linear,
        expert_names=("mlp", "w1", "w3", "w2"),
        routing="corrected_sigmoid",
        weights=kimi_weights,
    ),
)
