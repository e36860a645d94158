"""What a plugin declares in `PluginSpec.capabilities` and `constraints`, held against what is asked.

Owns: the meaning of the known keys. Never does: call a plugin. Called by: selection and config.
An absent key means no limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.reason import Reason
from core.api.specs import AttentionQuery
from core.plugin.hookspecs import PluginSpec


def device_reasons(spec: PluginSpec, device: str) -> list[Reason]:
    """Against `devices`, by device type (`cuda` for `cuda:1`)."""
    return _member(spec, "devices", "device", device.partition(":")[0])


def dtype_reasons(spec: PluginSpec, dtype: str) -> list[Reason]:
    """Against `dtypes`."""
    return _member(spec, "dtypes", "dtype", dtype, "--dtype chooses another")


def attention_reasons(spec: PluginSpec, query: AttentionQuery) -> list[Reason]:
    """Against everything an attention backend may declare."""
    found = device_reasons(spec, query.device)
    found += _member(spec, "kv_dtypes", "kv_cache_dtype", query.dtype, "--kv-cache-dtype chooses another")
    found += _member(spec, "head_sizes", "head_size", query.spec.head_size)
    found += _member(spec, "block_sizes", "block_size", query.block_size, "--block-size chooses another")
    features = {"window": query.spec.window, "cap": query.spec.cap}
    for name, value in features.items():
        if value is not None and spec.capabilities.get(name) is False:
            found.append(Reason(name, f"layers without {name}", str(value)))
    return found


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
    allowed = spec.capabilities.get(key)
    if allowed is None or actual in allowed:
        return []
    return [Reason(code, " or ".join(str(value) for value in allowed), str(actual), hint)]
