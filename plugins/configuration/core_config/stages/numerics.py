"""The numerics id, which names everything that results depend on, computed without loading anything. The running engine
reports the same id.

Owns: the calls to the chosen kernels and attention plugins, and the form of the id. Never does: import torch.
Called by: resolve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import importlib_metadata

from core.plugin.manifest import Manifest
from core_config.stages.chosen import Chosen
from core_config.stages.settings import Settings, underscored
from core_runtime.specs.adapter_type import adapter_name
from core_runtime.specs.kv_types import kv_name, state_dtype
from core_runtime.specs.operation_order import Order, as_order, order_name


def numerics_id(
    kernels: Sequence[Manifest],
    attention: Sequence[Manifest],
    given: Mapping[str, Mapping[str, Any]],
    dtype: str,
    kv_dtype: str,
    numerics: str,
    order: str = "",
) -> str | None:
    """Return `KERNELS/ATTENTION/DTYPE/kv-DTYPE`, kernels in order of preference; None when a plugin does not report its
    part.

    given: own arguments that the user gave: of the `platform`, and of each plugin of `kernels` and `attention` by name.
    numerics: `fast` or `reference`.
    order: see `order_name`.
    """
    version = importlib_metadata.version("torch").partition("+")[0]
    reference = f"torch-{version}" if numerics == "fast" else f"torch-rows-{version}-tree8"
    providers = [_answer(manifest, "kernels", given) for manifest in kernels]
    backends = {_answer(manifest, "attention", given) for manifest in attention}
    if None in providers or None in backends:
        return None
    return f"{'+'.join([*providers, reference])}{order}/{','.join(sorted(backends))}/{dtype}/kv-{kv_dtype}"


def given_order(settings: Settings) -> Order:
    """Return the order of providers for single operations; empty for one that a rule refuses."""
    try:
        return as_order(settings["ir_op_priority"])
    except ValueError:
        return {}


def own_arguments(settings: Settings) -> dict[str, Mapping[str, Any]]:
    """Return the `given` of `numerics_id`."""
    own = {kind: settings[f"{kind}_config"] for kind in ("kernels", "attention")}
    return own | {"platform": underscored(settings["platform_config"])}


def _answer(manifest: Manifest, kind: str, given: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a plugin's part of the id, a string or None."""
    own = given[kind].get(manifest.row.name) or {}
    return manifest.call("core_numerics", platform=given["platform"], arguments=underscored(own))


def planned_numerics(settings: Settings, chosen: Chosen, layer_dtypes: Sequence[str] = ()) -> str | None:
    """Return the id of the plugins that were chosen. layer_dtypes: see `MemoryPlan`."""
    stages = chosen.stages
    attention = [choice.manifest for name, choice in stages.items() if name.startswith("attention.")]
    kernels = stages["kernels"].manifests if "kernels" in stages else ()
    by_chance = settings["enable_mamba_cache_stochastic_rounding"]
    states = state_dtype(settings["mamba_cache_dtype"], settings["mamba_ssm_cache_dtype"], by_chance=by_chance)
    kv = kv_name(settings["kv_cache_dtype"], layer_dtypes, states)
    order = order_name(given_order(settings))
    found = numerics_id(kernels, attention, own_arguments(settings), settings["dtype"], kv, settings["numerics"], order)
    if found is None or not settings["enable_lora"]:
        return found
    return found + adapter_name(settings["dtype"], settings["lora_dtype"])
