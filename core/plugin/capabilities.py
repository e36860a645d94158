"""Keys of `PluginSpec.capabilities` that the engine knows, and mistakes in `PluginSpec.constraints`.

Owns: these keys with their types. Never does: call a plugin, or choose one (`core_config.selection` does).
Called by: manifest, signatures, selection, the runtime, the kit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.specs import ACTIVATIONS
from core.args import services
from core.plugin.hookspecs import PluginSpec

LISTS = frozenset((
    "dtypes", "kv_dtypes", "head_sizes", "block_sizes", "devices", "formats", "model_types", "quantization", "layer_kinds",
    "invariant_kinds", "state_ops", "state_dtypes", "input_roundings", "operations",
))  # fmt: skip
BOOLEANS = frozenset((
    "window", "cap", "sinks", "alibi", "chunked", "bidirectional", "spans", "sparse", "batch_invariant", "reference_numerics",
    "padding", "strided", "tree", "chunked_prefill", "prefix_caching", "device_graphs", "quantized", "learns", "only_named",
))  # fmt: skip
"""Capabilities that the core knows: `LISTS` and `BOOLEANS`, by the type of value. Plugins may declare others of their own."""


def roundings_of(capabilities: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the precisions that make a platform faster when layer inputs are rounded to them; all of them by default."""
    return tuple(capabilities.get("input_roundings", ACTIVATIONS))


def layer_kinds(capabilities: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of layers that an attention backend serves; full and sliding by default."""
    return tuple(capabilities.get("layer_kinds", ("full", "sliding")))


def constraint_mistakes(spec: PluginSpec) -> list[str]:
    """Return the mistakes in the declared constraints themselves: unknown arguments, and values that no argument accepts."""
    if not isinstance(spec.constraints, Mapping):
        return [f"its constraints are {spec.constraints!r}, expected {{engine argument: allowed values}}"]
    return services.constraint_mistakes(spec.constraints) if spec.constraints else []
