"""The experts of a layer, from a configuration. Torch-free.

Owns: the keys about experts and routing. Never does: know a family by name. Called by: `build`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.errors import UserError
from core_runtime.models.bounds import MOST_EXPERTS
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import Family
from core_runtime.specs.decoder_spec import ExpertsSpec
from core_runtime.specs.routing_spec import RoutingSpec

METHODS = {name: name for name in ("greedy", "group_limited_greedy", "noaux_tc")}
"""Methods of choosing experts, as DeepSeek's configurations name them."""


def experts_of(family: Family, hf_config: Mapping[str, Any], index: int) -> ExpertsSpec | None:
    """Return the experts of a layer; None: the layer has a plain MLP, as do all layers of a model with 0 experts."""
    if family.expert_names is None:
        return None
    config = configuration(hf_config)
    is_sparse = _is_sparse(config, index)
    count = _num_experts(config, index)
    if count == 0:
        return None
    if count * config.positive("num_hidden_layers") > MOST_EXPERTS:
        raise UserError(
            f"{count} experts in each layer are more than {MOST_EXPERTS} in all; is the configuration damaged?"
        )
    top_k = _of_layer(config, "num_experts_per_tok", index)
    if top_k > count:
        raise UserError(f"num_experts_per_tok is {top_k}; the model has {count} experts a layer.")
    inner = config.positive("moe_intermediate_size", config.get("intermediate_size"))
    routing = _routing(family, config, count, top_k)
    shared = _shared_size(config, inner)
    # Only now, so that a damaged value is found whatever the layer, and no key counts as unread.
    if not is_sparse:
        return None
    corrected = family.routing in ("corrected_sigmoid", "corrected_softmax")
    more = {"correction": corrected, **family.experts}
    return ExpertsSpec(count, inner, routing, family.expert_names, shared, **more)


def _shared_size(config: Configuration, inner: int) -> int:
    """Return the inner size of the shared expert: given directly, or as a number of experts; 0 without one."""
    size = config.count("shared_expert_intermediate_size", 0) or config.count("shared_intermediate_size", 0)
    num_shared = config.count("n_shared_experts", 0) or config.count("num_shared_experts", 0)
    return size or inner * num_shared


def _is_sparse(config: Configuration, index: int) -> bool:
    """Whether a layer has experts.

    `mlp_layer_types` decides, or else `moe_layers` lists the layers with experts. Otherwise every
    `decoder_sparse_step`-th layer, or every `moe_layer_freq`-th one, has experts, from `first_k_dense_replace` to
    `moe_layer_end_index` (-1: the last one). Layers in `mlp_only_layers` never do.
    """
    kinds = config.list_of("mlp_layer_types", str)
    listed = config.list_of("moe_layers", int)
    plain = config.list_of("mlp_only_layers", int)
    first = config.count("first_k_dense_replace", 0)
    last = config.number("moe_layer_end_index", -1.0, low=-1.0)
    step = config.positive("decoder_sparse_step", 1)
    frequency = config.positive("moe_layer_freq", 1)
    if kinds:
        return _kind(config, kinds, index) == "sparse"
    # An empty list counts: no layer has experts then.
    if config.get("moe_layers") is not None:
        return index in listed
    if index in plain or index < first or 0 <= last < index:
        return False
    return (index + 1) % step == 0 and index % frequency == 0


def _kind(config: Configuration, kinds: list[str], index: int) -> str:
    num_layers = config.positive("num_hidden_layers")
    if len(kinds) < num_layers or not set(kinds) <= {"dense", "sparse"}:
        config.fail("mlp_layer_types", kinds, f"dense or sparse for each of {num_layers} layers")
    return kinds[index]


def _num_experts(config: Configuration, index: int) -> int:
    """Return the number of experts, under any of the names that configurations use for it."""
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        if config.get(name) is not None:
            return _of_layer(config, name, index)
    return config.positive("num_local_experts")


def _of_layer(config: Configuration, name: str, index: int) -> int:
    """Return a number that is the same for all layers, or given as a list with one for each."""
    if not isinstance(config.get(name), list):
        return config.count(name)
    numbers = config.list_of(name, int)
    if len(numbers) < config.positive("num_hidden_layers") or min(numbers) < 1:
        config.fail(name, numbers, "a positive integer for each layer")
    return numbers[index]


def _routing(family: Family, config: Configuration, count: int, top_k: int) -> RoutingSpec:
    """Return the routing of the experts.

    softmax: scores of all experts; with `topk_method` greedy no groups. corrected_sigmoid, corrected_softmax: a bias
        for each expert counts in the choice (DeepSeek-V3, arXiv 2412.19437).
    """
    if not isinstance(family.routing, str):
        return family.routing(config, count, top_k)
    renormalize = config.flag("norm_topk_prob", family.renormalize)
    factor = config.number("routed_scaling_factor", 1.0)
    groups, top_groups = groups_of(config, count, top_k)
    if family.routing == "corrected_sigmoid":
        return RoutingSpec(top_k, "sigmoid", renormalize, factor, groups, top_groups, "best_two")
    if renormalize and factor != 1.0:
        raise UserError(
            f"routed_scaling_factor is {factor} and norm_topk_prob is set: {family.name} models do one or the other; "
            "set one of them with --hf-overrides."
        )
    return RoutingSpec(top_k, "softmax", renormalize, factor, groups, top_groups)


def groups_of(config: Configuration, count: int, top_k: int) -> tuple[int, int]:
    """Return the number of groups of experts, and of those that take part; both 1 without groups. Raises UserError.

    count: number of experts. top_k: number of experts a token.
    """
    method = config.choice("topk_method", METHODS, "group_limited_greedy")
    groups = 1
    top_groups = 1
    given_groups = config.count("n_group", 0)
    given_top_groups = config.count("topk_group", 0)
    if method != "greedy":
        groups = given_groups or 1
        top_groups = given_top_groups or groups
    group_size = count // groups
    if count % groups or not 1 <= top_groups <= groups or top_k > group_size * top_groups:
        raise UserError(
            f"n_group is {groups} and topk_group {top_groups}: {count} experts are not that many equal groups, or the "
            f"chosen groups have no {top_k} experts; the configuration of the checkpoint is damaged."
        )
    return groups, top_groups
