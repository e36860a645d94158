"""Families whose heads or rotary embeddings differ by the kind of a layer: MiMo, Laguna, AFMoE, Hunyuan 3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from core.api.errors import UserError
from core.api.specs import AttentionSpec
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import EXPERTS, Family
from core_runtime.models.weight_rules import Ignored, Rename, modules
from core_runtime.specs.block_spec import BlockSpec, HeadsSpec
from core_runtime.specs.decoder_spec import DecoderSpec

BY_KIND = {"rope_parameters.*_attention": "layers of that kind read it"}
"""Neutral keys of models whose rotary embeddings differ by the kind of a layer."""


def afmoe_embedding(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Scale embeddings by the root of their size, if the configuration says so."""
    if not configuration(hf_config).flag("mup_enabled", False):
        return spec
    return msgspec.structs.replace(spec, embed_scale=math.sqrt(spec.hidden_size))


def mimo_windows(given: Mapping[str, Any]) -> Configuration:
    """Return the configuration with windows and layer kinds.

    The older key for windows does not count the query itself. The first and every sixth layer have full attention.
    """
    config = configuration(given)
    values: dict[str, Any] = {}
    kinds = config.list_of("layer_types", str)
    if not kinds:
        for index in range(config.positive("num_hidden_layers")):
            is_full = index == 0 or (index + 1) % 6 == 0
            kinds.append("full_attention" if is_full else "sliding_attention")
        values["layer_types"] = kinds
    if config.get("sliding_window_size") is not None:
        values["sliding_window"] = config.positive("sliding_window_size") + 1
    if config.get("routed_scaling_factor") is None:
        values["routed_scaling_factor"] = 1.0
    return config.overlaid(values)


def mimo_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Set the size and the factor of values. Sliding layers have twice the keys, and sinks."""
    config = configuration(hf_config)
    mixer = block.mixer
    assert isinstance(mixer, AttentionSpec), "every layer attends"
    slides = mixer.window is not None
    own = msgspec.structs.replace(
        mixer,
        num_kv_heads=mixer.num_kv_heads * (2 if slides else 1),
        head_size_v=config.positive("v_head_dim", 128),
        sinks=slides,
    )
    factor = config.number("attention_value_scale", 1.0)
    return msgspec.structs.replace(block, mixer=own, mixer_scale=factor)


def laguna_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Set the number of heads, which differs by layer."""
    config = configuration(hf_config)
    counts = config.list_of("num_attention_heads_per_layer", int)
    mixer = block.mixer
    if not counts or not isinstance(mixer, AttentionSpec):
        return block
    if len(counts) != config.positive("num_hidden_layers") or any(
        one < 1 or one % mixer.num_kv_heads for one in counts
    ):
        expected = f"a multiple of {mixer.num_kv_heads} (num_key_value_heads) for each layer"
        config.fail("num_attention_heads_per_layer", counts, expected)
    own = msgspec.structs.replace(mixer, num_heads=counts[index])
    return msgspec.structs.replace(block, mixer=own)


def laguna_gates(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set the output gate: one for each head, or for each number of its output."""
    gating = hf_config.get("gating", True)
    gates = {True: "own_heads", "per-head": "own_heads", "per-element": "own"}
    if gating not in gates:
        raise UserError(f"gating is {gating!r} in the model's configuration; expected true, per-head or per-element.")
    heads = msgspec.structs.replace(spec.heads, gate=gates[gating], opening="softplus")
    return msgspec.structs.replace(spec, heads=heads)


def by_kind(full: float, sliding: float, full_part: float, sliding_part: float) -> dict[str, Any]:
    """Return default rotary parameters: bases and rotating parts of the head, for full-attention layers and for sliding
    layers.
    """
    return {
        "full_attention": {"rope_type": "default", "rope_theta": full, "partial_rotary_factor": full_part},
        "sliding_attention": {"rope_type": "default", "rope_theta": sliding, "partial_rotary_factor": sliding_part},
    }


ROWS = (
    Family(
        name="afmoe",
        model_types=("afmoe",),
        architectures=("AfmoeForCausalLM",),
        keys={
            "first_k_dense_replace": "num_dense_layers",
            "routed_scaling_factor": "route_scale",
            "sliding_window_pattern": "global_attn_every_n_layers",
        },
        sandwich_norms=True,
        qk_norm=True,
        unrotated="full",
        heads=HeadsSpec(gate="own"),
        biases={"mlp": False},
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
        adjust=afmoe_embedding,
        weights=(
            Rename(r"mlp\.expert_bias$", "mlp.gate.e_score_correction_bias"),
            *modules(
                ("mlp.router.gate", "mlp.gate"),
                ("pre_mlp_layernorm", "pre_feedforward_layernorm"),
                ("post_mlp_layernorm", "post_feedforward_layernorm"),
            ),
        ),
    ),
    Family(
        name="mimo_v2_flash",
        model_types=("mimo_v2_flash",),
        architectures=("MiMoV2FlashForCausalLM",),
        usual=mimo_windows,
        defaults={"first_k_dense_replace": 1, "rope_parameters": by_kind(5e6, 1e4, 0.334, 0.334)},
        neutral=BY_KIND,
        biases={"out": False, "mlp": False},
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
        block=mimo_block,
        weights=(
            *modules(("self_attn.attention_sink_bias", "self_attn.sinks")),
            Ignored(r"model\.mtp\..*", "layers that draft"),
        ),
    ),
    Family(
        name="laguna",
        model_types=("laguna",),
        architectures=("LagunaForCausalLM",),
        keys={"routed_scaling_factor": "moe_routed_scaling_factor"},
        defaults={"first_k_dense_replace": 1, "rope_parameters": by_kind(5e5, 1e4, 0.5, 1.0)},
        neutral={
            **BY_KIND,
            "moe_router_logit_softcapping = 0.0": "0 is none",
            "moe_apply_router_weight_on_input = false": "the only way",
        },
        qk_norm=True,
        biases={"mlp": False},
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
        block=laguna_block,
        adjust=laguna_gates,
        weights=modules(
            ("self_attn.g_proj", "self_attn.gate_proj"),
            ("mlp.shared_expert", "mlp.shared_experts"),
            ("mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias"),
        ),
    ),
    Family(
        name="hy_v3",
        model_types=("hy_v3",),
        architectures=("HYV3ForCausalLM",),
        keys={"routed_scaling_factor": "router_scaling_factor"},
        defaults={"first_k_dense_replace": 1},
        neutral={"enable_moe_fp32_combine": "sums are float32"},
        qk_norm=True,
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
        weights=(
            Rename(r"mlp\.expert_bias$", "mlp.gate.e_score_correction_bias"),
            *modules(("mlp.router.gate", "mlp.gate"), ("mlp.shared_mlp", "mlp.shared_experts")),
        ),
    ),
)
