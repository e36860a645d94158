"""The experts of a layer, from a configuration. Torch-free.

Owns: the keys about experts and routing. Never does: know a family by name. Called by: `build`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.decoder_spec import ExpertsSpec
from core.api.errors import UserError
from core.api.specs import RoutingSpec
from core.models.configuration import positive
from core.models.families.row import Family


def experts_of(family: Family, hf_config: Mapping[str, Any], index: int) -> ExpertsSpec | None:
    """The experts of a layer; None: it has a plain MLP."""
    if family.expert_names is None or not _is_sparse(hf_config, index):
        return None
    count = _num_experts(hf_config)
    top_k = positive(hf_config, "num_experts_per_tok", 2)
    if top_k > count:
        raise UserError(f"num_experts_per_tok is {top_k}; the model has {count} experts a layer.")
    inner = positive(hf_config, "moe_intermediate_size", hf_config.get("intermediate_size"))
    routing = _routing(family, hf_config, count, top_k)
    more = {"correction": family.routing == "corrected_sigmoid", **family.experts}
    return ExpertsSpec(count, inner, routing, family.expert_names, _shared_size(hf_config, inner), **more)


def _shared_size(hf_config: Mapping[str, Any], inner: int) -> int:
    """Inner numbers of the expert that every token takes: given as such, or as a number of experts; 0 without one."""
    size = hf_config.get("shared_expert_intermediate_size") or hf_config.get("shared_intermediate_size")
    if size:
        return positive(hf_config, "shared_expert_intermediate_size", size)
    num_shared = hf_config.get("n_shared_experts") or hf_config.get("num_shared_experts") or 0
    return inner * int(num_shared)


def _is_sparse(hf_config: Mapping[str, Any], index: int) -> bool:
    """Every `decoder_sparse_step`-th layer has experts, or every `moe_layer_freq`-th one from `first_k_dense_replace` on;
    the ones of `mlp_only_layers` never do."""
    plain = hf_config.get("mlp_only_layers") or ()
    first = hf_config.get("first_k_dense_replace") or 0
    if index in plain or index < first:
        return False
    step = positive(hf_config, "decoder_sparse_step", 1)
    frequency = positive(hf_config, "moe_layer_freq", 1)
    return (index + 1) % step == 0 and index % frequency == 0


def _num_experts(hf_config: Mapping[str, Any]) -> int:
    """The number of experts, under whichever name the configuration has it."""
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        if hf_config.get(name) is not None:
            return positive(hf_config, name)
    return positive(hf_config, "num_local_experts")


def _routing(family: Family, hf_config: Mapping[str, Any], count: int, top_k: int) -> RoutingSpec:
    """softmax: scores of all experts; with `topk_method` greedy no groups. corrected_sigmoid: a bias for each expert counts
    in the choice (DeepSeek-V3, arXiv 2412.19437)."""
    if not isinstance(family.routing, str):
        return family.routing(hf_config, count, top_k)
    renormalize = bool(hf_config.get("norm_topk_prob", family.renormalize))
    factor = float(hf_config.get("routed_scaling_factor") or 1.0)
    groups = 1
    top_groups = 1
    if hf_config.get("topk_method") != "greedy":
        groups = hf_config.get("n_group") or 1
        top_groups = hf_config.get("topk_group") or groups
    group_size = count // groups
    if count % groups or not 1 <= top_groups <= groups or top_k > group_size * top_groups:
        raise UserError(
            f"n_group is {groups} and topk_group {top_groups}: {count} experts are not that many equal groups, or the "
            f"chosen groups have no {top_k} experts; the configuration of the checkpoint is damaged."
        )
    if family.routing == "corrected_sigmoid":
        return RoutingSpec(top_k, "sigmoid", renormalize, factor, groups, top_groups, "best_two")
    if renormalize and factor != 1.0:
        raise UserError(
            f"routed_scaling_factor is {factor} and norm_topk_prob is set: {family.name} models do one or the other; "
            "set one of them with --hf-overrides."
        )
    return RoutingSpec(top_k, "softmax", renormalize, factor, groups, top_groups)
