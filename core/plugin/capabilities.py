"""Keys of `PluginSpec.capabilities` that the engine knows, and mistakes in `PluginSpec.constraints`.

Owns: these keys with their types. Never does: call a plugin, or choose one (`core_config.selection` does).
Called by: manifest, signatures, selection, the runtime, the kit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.api.errors import nearest
from core.api.specs import ACTIVATIONS
from core.plugin.hookspecs import PluginSpec

if TYPE_CHECKING:
    from core.args.schema import Field


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
    if not spec.constraints:
        return []
    from core.args import foreign  # only when they are needed: probes read manifests, too
    from core.args.schema import is_whole, schema

    fields = schema().fields
    mistakes = []
    for name, allowed in spec.constraints.items():
        is_list = isinstance(allowed, (list, tuple))
        constrains = f"it constrains {name} to {allowed!r}"
        row = foreign.named(str(name))
        if row is not None and row.neutral:
            # an argument that is not served: only the value that changes nothing can be asked for
            if is_list and not any(map(row.is_neutral, allowed)):
                mistakes.append(f"{constrains}: {row.sentence}")
        elif name not in fields and not is_whole():
            continue  # the core is alone: nothing can be chosen here that this would constrain
        elif name not in fields:
            hint = nearest(str(name), fields)
            mistakes.append(f"it constrains '{name}', which is no engine argument.{hint}".rstrip("."))
        elif not is_list or not allowed:
            mistakes.append(f"{constrains}, expected a list of allowed values")
        else:
            mistakes += _impossible(fields[name], allowed)
    return mistakes


def _impossible(field: Field, values: Sequence[Any]) -> list[str]:
    """A sentence for each of these values that the argument cannot have."""
    from core.args.convert import convert

    mistakes: list[str] = []
    for value in values:
        try:
            convert(field, value)
        except ValueError as error:
            mistakes.append(f"it constrains {field.name} to {value!r}: {error}".rstrip("."))
    return mistakes
