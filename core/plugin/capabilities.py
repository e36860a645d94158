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

LISTS = frozenset(
    {
        "dtypes",
        "kv_dtypes",
        "head_sizes",
        "block_sizes",
        "devices",
        "formats",
        "model_types",
        "quantization",
        "layer_kinds",
        "invariant_kinds",
        "state_ops",
        "input_roundings",
        "operations",
    }
)
BOOLEANS = frozenset(
    {
        "window",
        "cap",
        "sinks",
        "alibi",
        "chunked",
        "bidirectional",
        "batch_invariant",
        "reference_numerics",
        "padding",
        "tree",
        "chunked_prefill",
        "prefix_caching",
        "device_graphs",
        "quantized",
        "learns",
        "only_named",
    }
)
"""Capabilities that the core knows, by the type of their value; a plugin may declare others for itself."""


def roundings_of(capabilities: Mapping[str, Any]) -> tuple[str, ...]:
    """The precisions to which a platform gains by having inputs rounded."""
    return tuple(capabilities.get("input_roundings", ACTIVATIONS))


def layer_kinds(capabilities: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds of layers that an attention backend serves."""
    return tuple(capabilities.get("layer_kinds", ("full", "sliding")))


def constraint_mistakes(spec: PluginSpec) -> list[str]:
    """Mistakes in the declared constraints themselves: unknown arguments, values that an argument cannot have."""
    if not isinstance(spec.constraints, Mapping):
        return [f"its constraints are {spec.constraints!r}, expected {{engine argument: allowed values}}"]
    return services.constraint_mistakes(spec.constraints) if spec.constraints else []
