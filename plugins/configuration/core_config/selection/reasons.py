"""Reasons against a plugin that follow from its declared `PluginSpec.capabilities` and `constraints`.

Owns: what the declarations mean when a plugin is chosen. Never does: call a plugin. Called by: the stages of selection, the
configuration, the kit.

An absent key means no limit; `layer_kinds` (full and sliding), `sinks`, `alibi`, `chunked`, `bidirectional`, `spans` and
`sparse` (none) must be declared for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.reason import Reason
from core.api.specs import STATE_DTYPE, AttentionQuery, AttentionSpec, StateQuery
from core.plugin.capabilities import layer_kinds
from core.plugin.hookspecs import PluginSpec


def device_type(device: str) -> str:
    """`cuda` for `cuda:1`."""
    return device.partition(":")[0]


def device_reasons(spec: PluginSpec, device: str) -> list[Reason]:
    """Against `devices`, by device type."""
    return _member(spec, "devices", "device", device_type(device))


def dtype_reasons(spec: PluginSpec, dtype: str) -> list[Reason]:
    """Against `dtypes`."""
    return _member(spec, "dtypes", "dtype", dtype, "--dtype chooses another")


def attention_reasons(spec: PluginSpec, query: AttentionQuery) -> list[Reason]:
    """Against everything an attention backend may declare."""
    found = device_reasons(spec, query.device)
    kinds = layer_kinds(spec.capabilities)
    if query.spec.kind not in kinds:
        found.append(Reason("layer_kind", " or ".join(kinds), query.spec.kind))
    found += _member(spec, "kv_dtypes", "kv_cache_dtype", query.dtype, "--kv-cache-dtype chooses another")
    found += _member(spec, "block_sizes", "block_size", query.block_size, "--block-size chooses another")
    if not isinstance(query.spec, AttentionSpec):
        index = query.spec.index
        if index is not None and not spec.capabilities.get("sparse", False):
            hint = f"--hf-overrides.max_position_embeddings {index.top_k} limits sequences to what it reads whole"
            found.append(Reason("sparse", "layers without an index", f"the best {index.top_k} keys", hint))
        return found
    found += _member(spec, "head_sizes", "head_size", query.spec.head_size)
    if query.spans and not spec.capabilities.get("spans", False):
        found.append(
            Reason("spans", "rows that see no later ones", "yes", "--language-model-only serves the text alone")
        )
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
    """Against what a backend declares about layers with a state: that it serves them, `state_ops` and `state_dtypes`."""
    found = device_reasons(spec, query.device)
    kinds = layer_kinds(spec.capabilities)
    if query.spec.kind not in kinds:
        hint = "--attention-backend full=NAME,state=NAME names one for each kind"
        found.append(Reason("layer_kind", " or ".join(kinds), query.spec.kind, hint))
        return found
    found += _member(spec, "state_ops", "state_op", query.spec.op)
    types = spec.capabilities.get("state_dtypes", (STATE_DTYPE,))
    lacking = [part for part in query.dtype.split("+") if part not in types]
    if lacking:
        hint = "--mamba-cache-dtype and --mamba-ssm-cache-dtype choose others"
        found.append(Reason("state_dtype", " or ".join(types), lacking[0], hint))
    return found


def promises(spec: PluginSpec, numerics: str, layers: str = "", *, requested: bool = False) -> bool:
    """Whether a plugin declares that a request's results depend on that request alone.

    layers: the layer kind that it serves. requested: whether `--batch-invariant` demands it.
    """
    capabilities = spec.capabilities
    slowly = numerics == "reference" and capabilities.get("reference_numerics")
    asked = requested and layers in capabilities.get("invariant_on_request", ())
    always = capabilities.get("batch_invariant") or layers in capabilities.get("invariant_kinds", ())
    return bool(always or slowly or asked)


def invariance_reasons(spec: PluginSpec, numerics: str, layers: str = "") -> list[Reason]:
    """Against a plugin without that promise, for `--batch-invariant`."""
    if promises(spec, numerics, layers, requested=True):
        return []
    return [Reason("batch_invariant", "the same bits in every batch", "no such promise", "leave out --batch-invariant")]


def constraint_problems(spec: PluginSpec, kind: str, values: Mapping[str, Any]) -> list[str]:
    """Sentences for engine arguments whose value a chosen plugin does not allow."""
    problems = []
    for name, allowed in spec.constraints.items():
        if name in values and values[name] not in allowed:
            shown = ", ".join(str(value) for value in allowed)
            flag = "--" + name.replace("_", "-")
            problems.append(f"{flag} {values[name]}: {kind} plugin '{spec.name}' allows only {shown}.")
    return problems


def _member(spec: PluginSpec, key: str, code: str, actual: Any, hint: str = "") -> list[Reason]:
    """Why `actual` is not among the declared values, if it is not."""
    allowed = spec.capabilities.get(key)
    if allowed is None or actual in allowed:
        return []
    expected = " or ".join(str(value) for value in allowed)
    return [Reason(code, expected, str(actual), hint)]
