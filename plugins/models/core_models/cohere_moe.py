"""Cohere 2 with experts: two kinds of routers, parallel blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import EXPERTS, Family
from core_runtime.specs.block_spec import NormSpec
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.routing_spec import RoutingSpec


def cohere_sizes(given: Mapping[str, Any]) -> Configuration:
    """Return the configuration with the own sizes of the first dense layers."""
    config = configuration(given)
    inner = config.positive("intermediate_size")
    dense = config.positive("prefix_dense_intermediate_size", inner)
    values: dict[str, Any] = {"moe_intermediate_size": inner, "intermediate_size": dense}
    kinds = config.list_of("layer_types", str)
    first = config.count("first_k_dense_replace", 0)
    patterns = [config.positive("prefix_dense_sliding_window_pattern", 1)] * first
    places = list(range(first))
    for place in range(config.positive("num_hidden_layers") - first):
        patterns.append(config.positive("sliding_window_pattern", 4))
        places.append(place)
    if not kinds:
        for place, pattern in zip(places, patterns, strict=True):
            kinds.append("sliding_attention" if (place + 1) % pattern else "full_attention")
    values["layer_types"] = kinds
    return config.overlaid(values)


def cohere_routing(hf_config: Mapping[str, Any], count: int, top_k: int) -> RoutingSpec:
    """Return the routing: a softmax of the chosen logits, or sigmoids of them."""
    config = configuration(hf_config)
    scores = config.choice("expert_selection_fn", {"softmax": "softmax", "sigmoid": "sigmoid"}, "softmax")
    renormalize = config.flag("norm_topk_prob", True)
    factor = _shared_factor(config)
    if scores == "softmax":
        return RoutingSpec(top_k, "softmax", True, factor)
    return RoutingSpec(top_k, "sigmoid", renormalize, factor)


def _shared_factor(config: Configuration) -> float:
    """Return the factor of chosen and shared experts, which are added or averaged."""
    factor = config.choice("shared_expert_combination_strategy", {"average": 0.5, "sum": 1.0}, "average")
    return factor if config.count("num_shared_experts", 0) else 1.0


def cohere_norms(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set norms and the scale of shared experts.

    Norms are layer norms unless the configuration has `rms_norm_eps`. Shared experts are scaled as the chosen ones are.
    """
    config = configuration(hf_config)
    norm = spec.norm
    if config.optional_number("rms_norm_eps") is None:
        norm = NormSpec(kind="layer", eps=config.number("layer_norm_eps", 1e-5))
    shared = msgspec.structs.replace(spec.mlp, out_scale=_shared_factor(config))
    blocks = []
    for block in spec.blocks:
        mlp = None if block.experts is None else shared
        blocks.append(msgspec.structs.replace(block, mlp=mlp))
    return msgspec.structs.replace(spec, norm=norm, blocks=tuple(blocks))


ROWS = (
    Family(
        name="cohere2_moe",
        model_types=("cohere2_moe",),
        architectures=("Cohere2MoeForCausalLM",),
        usual=cohere_sizes,
        defaults={"rope_parameters": None},
        order="parallel",
        interleaved=True,
        unrotated="full",
        tied_by_default=True,
        biases={"mlp": False},
        scalars={"logits": "logit_scale"},
        expert_names=EXPERTS,
        routing=cohere_routing,
        adjust=cohere_norms,
    ),
)
