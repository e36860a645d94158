"""Step 3.5: full and sliding layers with heads and rotary embeddings of their own, a gate for each head, and experts whose
numbers are limited in some layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core.api.specs import AttentionSpec
from core_models.by_kind import BY_KIND
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import Rename, Stacked, modules
from core_runtime.specs.block_spec import BlockSpec, HeadsSpec, MLPSpec

FULL: Final = "full_attention"
FIRST_EXPERTS: Final = 3
"""The first layer with experts, where the configuration does not say which layers have some."""

ONLY: Final[Mapping[str, Any]] = {
    "att_impl_type": "GQA",
    "use_head_wise_attn_gate": True,
    "use_qk_norm": True,
    "use_moe_router_bias": True,
    "moe_router_activation": "sigmoid",
    "zero_centered": True,
    "sink": False,
}
"""Keys that have one value in all models."""


def usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration with usual keys. Published lists have entries for layers that draft, too, after the others;
    bases and parts of rotary embeddings are lists with one entry a layer.
    """
    config = configuration(hf_config)
    count = config.positive("num_hidden_layers")
    for key, value in ONLY.items():
        if config.get(key, value) != value:
            config.fail(key, config.get(key), repr(value))
    kinds = config.list_of("layer_types", str)[:count] or [FULL] * count
    values: dict[str, Any] = {"layer_types": kinds, **_rotations(config, kinds)}
    halves = config.list_of("mlp_layer_types", str)[:count]
    if halves:
        values["mlp_layer_types"] = halves
    else:
        values["moe_layers"] = _layers_with_experts(config, count)
    return config.overlaid(values)


def _layers_with_experts(config: Configuration, count: int) -> list[int]:
    """Return the layers with experts: `moe_layers_enum`, a list or numbers with commas."""
    given = config.get("moe_layers_enum")
    if isinstance(given, str):
        numbers = [one.strip() for one in given.split(",") if one.strip()]
        if not all(one.isdecimal() for one in numbers):
            config.fail("moe_layers_enum", given, "numbers of layers with commas")
        return [int(one) for one in numbers]
    return list(range(FIRST_EXPERTS, count)) if given is None else config.list_of("moe_layers_enum", int)


def _rotations(config: Configuration, kinds: list[str]) -> dict[str, Any]:
    """Return `rope_parameters` by kind of layer, from lists with an entry a layer; nothing where they are there."""
    given = config.mapping("rope_parameters")
    if given is not None and all(isinstance(given.get(kind), Mapping) for kind in set(kinds)):
        return {}
    scaling = config.mapping("rope_scaling")
    bases = _of_layers(config, "rope_theta", kinds, 10000.0)
    parts = _of_layers(config, "partial_rotary_factors", kinds, 1.0)
    stretched = config.list_of("yarn_only_types", str) or [FULL]
    found: dict[str, dict[str, Any]] = {}
    for kind, base, part in zip(kinds, bases, parts, strict=False):
        more = {key: scaling[key] for key in scaling} if scaling is not None and kind in stretched else {}
        own = {"rope_type": "default", **more, "rope_theta": base, "partial_rotary_factor": part}
        if found.setdefault(kind, own) != own:
            config.fail(
                "rope_theta", bases, "equal numbers for all layers of a kind, and so for partial_rotary_factors"
            )
    return {"rope_parameters": found, "rope_theta": None, "rope_scaling": None}


def _of_layers(config: Configuration, key: str, kinds: list[str], usually: float) -> list[float]:
    """Return the numbers of all layers: a list of them, or one for all."""
    if not isinstance(config.get(key), list):
        return [config.number(key, usually)] * len(kinds)
    numbers = config.list_of(key, float)
    if len(numbers) < len(kinds):
        config.fail(key, numbers, f"a number for each of {len(kinds)} layers")
    return numbers


def block_of(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Set the heads of sliding layers, and limits of the numbers within MLP and experts."""
    config = configuration(hf_config)
    mixer = block.mixer
    assert isinstance(mixer, AttentionSpec), "every layer attends"
    if mixer.window is not None:
        mixer = msgspec.structs.replace(mixer, num_heads=_sliding_heads(config, mixer))
    experts, mlp = block.experts, None
    limit = _limit(config, "swiglu_limits", index)
    if experts is not None:
        experts = msgspec.structs.replace(experts, activation=limit or "silu")
    of_shared = _limit(config, "swiglu_limits_shared", index)
    if of_shared:
        mlp = MLPSpec(size=config.positive("intermediate_size"), activation=of_shared)
    return msgspec.structs.replace(block, mixer=mixer, experts=experts, mlp=mlp)


def _sliding_heads(config: Configuration, mixer: AttentionSpec) -> int:
    """Return the number of heads of a sliding layer: `attention_other_setting` says it, or a key of its own."""
    other = config.mapping("attention_other_setting")
    count = config.positive("num_sliding_attention_heads", mixer.num_heads)
    if other is not None:
        count = other.positive("num_attention_heads", mixer.num_heads)
        for key, expected in (("num_attention_groups", mixer.num_kv_heads), ("head_dim", mixer.head_size)):
            if other.positive(key, expected) != expected:
                other.fail(key, other.get(key), f"{expected}, as in other layers")
        other.get("attention_type")
    if count % mixer.num_kv_heads:
        config.fail("num_sliding_attention_heads", count, f"a multiple of {mixer.num_kv_heads} (num_attention_groups)")
    return count


def _limit(config: Configuration, key: str, index: int) -> str:
    """Return the activation with the limit of a layer; empty: there is none, which a 0 says too."""
    limits = config.get(key)
    if not limits:
        return ""
    numbers = [0.0 if one is None else one for one in limits] if isinstance(limits, list) else None
    valid = numbers is not None and index < len(numbers)
    if numbers is None or not valid or not all(isinstance(one, int | float) and 0 <= one < 1e6 for one in numbers):
        config.fail(key, limits, "a number from 0 for each layer")
    return f"clamped_silu:{numbers[index]:g}" if numbers[index] else ""


def _stacks(side: str) -> Stacked:
    """Return the rule for the matrices of all experts of a layer, one tensor for each of their parts."""
    return Stacked(rf"(model\.layers\.\d+\.moe)\.{side}\.weight", r"\1.experts.{expert}.{piece}.weight", (side,))


ROWS = (
    Family(
        name="step3p5",
        model_types=("step3p5",),
        architectures=("Step3p5ForCausalLM",),
        keys={
            "max_position_embeddings": ("max_position_embeddings", "max_seq_len"),
            "num_key_value_heads": "num_attention_groups",
            "num_local_experts": ("n_routed_experts", "moe_num_experts"),
            "num_experts_per_tok": "moe_top_k",
            "shared_expert_intermediate_size": ("share_expert_dim", "share_expert_dims"),
            "norm_topk_prob": "norm_expert_weight",
            "routed_scaling_factor": "moe_router_scaling_factor",
            "moe_layers_enum": "moe_layers_enum",
            "rope_theta": "rope_theta",
            "rope_scaling": "rope_scaling",
            "partial_rotary_factors": "partial_rotary_factors",
            "yarn_only_types": "yarn_only_types",
            "attention_other_setting": "attention_other_setting",
            **{key: key for key in ONLY},
        },
        neutral={
            **BY_KIND,
            "per_layer_config.*": "num_sliding_attention_heads says it",
            "max_seq_len": "max_position_embeddings, beside it, says it",
            "moe_every_n_layer": "the list of layers with experts says it",
            "moe_layer_offset": "the list of layers with experts says it",
            "use_moe": "the list of layers with experts says it",
            "need_fp32_gate": "scores of experts are float32",
        },
        usual=usual,
        eps_default=1e-5,
        norm_offset=1.0,
        qk_norm=True,
        heads=HeadsSpec(gate="own_heads"),
        expert_names=("moe", "gate_proj", "up_proj", "down_proj"),
        routing="corrected_sigmoid",
        block=block_of,
        weights=(
            Rename(r"(\.layers\.\d+)\.share_expert\.", r"\1.moe.shared_experts."),
            Rename(r"\.moe\.router_bias$", ".moe.gate.e_score_correction_bias"),
            *modules(("self_attn.g_proj", "self_attn.gate_proj")),
            *(_stacks(side) for side in ("gate_proj", "up_proj", "down_proj")),
        ),
    ),
)
