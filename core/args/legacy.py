"""Older spellings of values that are still understood: each is translated, with a warning.

Owns: old keys of --compilation-config, a bare compilation mode, `image=16` limits. Never does: convert or check.
Called by: parser and sources, before conversion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.args.schema import Field

# old key of --compilation-config: (new key, {old value: new value}; empty: the value stays)
_OLD_KEYS: Mapping[str, tuple[str, Mapping[Any, str]]] = {
    "level": ("mode", {}),
    "max_capture_size": ("max_cudagraph_capture_size", {}),
    "use_inductor": ("backend", {True: "inductor", False: "eager"}),
    "use_cudagraph": ("cudagraph_mode", {True: "PIECEWISE", False: "NONE"}),
    "full_cuda_graph": ("cudagraph_mode", {True: "FULL", False: "NONE"}),
}


def translate(field: Field, value: Any) -> tuple[Any, list[str]]:
    """`value` in today's spelling, and a warning for each thing that was translated. The input stays as it is."""
    if field.name == "compilation_config":
        return _compilation(value)
    if field.arg.pairs and isinstance(value, str) and "=" in value and not value.lstrip().startswith("{"):
        return value, [f"{field.flag} {value}: an older spelling; write {field.flag}.KEY NUMBER, or JSON."]
    return value, []


def _compilation(value: Any) -> tuple[Any, list[str]]:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return {"mode": value}, []
    if not isinstance(value, Mapping):
        return value, []
    found: dict[str, Any] = {}
    warnings: list[str] = []
    for key, entry in value.items():
        new, values = _OLD_KEYS.get(str(key).replace("-", "_"), (key, {}))
        meant = entry.lower() == "true" if isinstance(entry, str) and entry.lower() in ("true", "false") else entry
        plain = values.get(meant, entry) if isinstance(meant, bool) else entry
        if new != key and new not in value:
            warnings.append(f"--compilation-config.{key}: an older key; it is read as {new} {plain}.")
            found[new] = plain
        elif new == key:
            found[key] = entry
        else:
            warnings.append(f"--compilation-config.{key}: an older key of {new}, which is given too; it is not used.")
    return found, warnings
