"""Checks of a request against a plugin's declared `PluginSpec.capabilities` and `constraints`.

Owns: the meaning of the known keys. Never does: call a plugin. Called by: manifest, selection and config.

An absent key means no limit, with two exceptions. Without `layer_kinds`, a backend serves full and sliding layers only; without
`sinks`, `alibi`, `chunked` or `bidirectional`, it serves no layers of that sort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.api.errors import nearest
from core.api.reason import Reason
from core.api.specs import ACTIVATIONS, AttentionQuery, AttentionSpec, StateQuery
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
"""Capabilities that the core knows: `LISTS` and `BOOLEANS`, by the type of value. Plugins may declare others of their own."""


def device_type(device: str) -> str:
    """Return a device's type, such as `cuda` for `cuda:1`."""
    return device.partition(":")[0]


def roundings_of(capabilities: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the precisions that make a platform faster when layer inputs are rounded to them; all of them by default."""
    return tuple(capabilities.get("input_roundings", ACTIVATIONS))


def device_reasons(spec: PluginSpec, device: str) -> list[Reason]:
    """Check a device against `devices`, by device type."""
    return _member(spec, "devices", "device", device_type(device))


def dtype_reasons(spec: PluginSpec, dtype: str) -> list[Reason]:
    """Check a dtype against `dtypes`."""
    return _member(spec, "dtypes", "dtype", dtype, "--dtype chooses another")


def layer_kinds(capabilities: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of layers that an attention backend serves; full and sliding by default."""
    return tuple(capabilities.get("layer_kinds", ("full", "sliding")))


def attention_reasons(spec: PluginSpec, query: AttentionQuery) -> list[Reason]:
    """Check one attention layer against everything that an attention backend may declare."""
    found = device_reasons(spec, query.device)
    kinds = layer_kinds(spec.capabilities)
    if query.spec.kind not in kinds:
        found.append(Reason("layer_kind", " or ".join(kinds), query.spec.kind))
    found += _member(spec, "kv_dtypes", "kv_cache_dtype", query.dtype, "--kv-cache-dtype chooses another")
    found += _member(spec, "block_sizes", "block_size", query.block_size, "--block-size chooses another")
    if not isinstance(query.spec, AttentionSpec):
        return found
    found += _member(spec, "head_sizes", "head_size", query.spec.head_size)
    assumed = {"window": query.spec.window, "cap": query.spec.cap}
    for name, value in assumed.items():
        if value is not None and spec.capabilities.get(name) is False:
            found.append(Reason(name, f"layers without {name}", str(value)))
    layer = query.spec
    extra = {
        "sinks": layer.sinks,
        "alibi": layer.alibi,
        "chunked": layer.chunked,
        "bidirectional": not layer.causal,
    }
    for name, wanted in extra.items():
        if wanted and not spec.capabilities.get(name, False):
            expected = "layers that see no later keys" if name == "bidirectional" else f"layers without {name}"
            found.append(Reason(name, expected, "yes"))
    return found


def state_reasons(spec: PluginSpec, query: StateQuery) -> list[Reason]:
    """Check a layer with a state against the `layer_kinds` and `state_ops` that a backend declares."""
    found = device_reasons(spec, query.device)
    kinds = layer_kinds(spec.capabilities)
    if query.spec.kind not in kinds:
        hint = "--attention-backend full=NAME,state=NAME names one for each kind"
        found.append(Reason("layer_kind", " or ".join(kinds), query.spec.kind, hint))
        return found
    found += _member(spec, "state_ops", "state_op", query.spec.op)
    return found


def constraint_problems(spec: PluginSpec, kind: str, values: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each engine argument whose value a chosen plugin does not allow."""
    problems = []
    for name, allowed in spec.constraints.items():
        if name in values and values[name] not in allowed:
            shown = ", ".join(str(value) for value in allowed)
            flag = "--" + name.replace("_", "-")
            problems.append(f"{flag} {values[name]}: {kind} plugin '{spec.name}' allows only {shown}.")
    return problems


def constraint_mistakes(spec: PluginSpec) -> list[str]:
    """Return the mistakes in the declared constraints themselves: unknown arguments, and values that no argument accepts."""
    if not isinstance(spec.constraints, Mapping):
        return [f"its constraints are {spec.constraints!r}, expected {{engine argument: allowed values}}"]
    if not spec.constraints:
        return []
    # Imported only when there are constraints: platform probes read manifests too, and must start quickly.
    from core.args import foreign
    from core.args.schema import schema

    fields = schema().fields
    mistakes = []
    for name, allowed in spec.constraints.items():
        is_list = isinstance(allowed, (list, tuple))
        constrains = f"it constrains {name} to {allowed!r}"
        row = foreign.named(str(name))
        if row is not None and row.neutral:
            # An argument that is accepted but not served: the only value a user can give is the one without effect.
            if is_list and not any(map(row.is_neutral, allowed)):
                mistakes.append(f"{constrains}: {row.sentence}")
        elif name not in fields:
            hint = nearest(str(name), fields)
            mistakes.append(f"it constrains '{name}', which is no engine argument.{hint}".rstrip("."))
        elif not is_list or not allowed:
            mistakes.append(f"{constrains}, expected a list of allowed values")
        else:
            mistakes += _impossible(fields[name], allowed)
    return mistakes


def _impossible(field: Field, values: Sequence[Any]) -> list[str]:
    """Return a sentence for each value that the argument cannot have."""
    from core.args.convert import convert

    mistakes: list[str] = []
    for value in values:
        try:
            convert(field, value)
        except ValueError as error:
            mistakes.append(f"it constrains {field.name} to {value!r}: {error}".rstrip("."))
    return mistakes


def _member(spec: PluginSpec, key: str, code: str, actual: Any, hint: str = "") -> list[Reason]:
    """Return a reason when the plugin declares values under `key` and `actual` is not one of them."""
    allowed = spec.capabilities.get(key)
    if allowed is None or actual in allowed:
        return []
    expected = " or ".join(str(value) for value in allowed)
    return [Reason(code, expected, str(actual), hint)]
