"""Conversion of a plugin's own arguments from a mapping to the Struct that the plugin declares.

Owns: that conversion, and the values that a Literal type allows. Never does: know a plugin.
Called by: config (before anything is loaded), the plugin framework.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from core.api.errors import nearest


def convert_struct(
    struct: type[msgspec.Struct] | None, values: Mapping[str, Any], prefix: str
) -> tuple[msgspec.Struct | None, list[str]]:
    """Convert a plugin's own arguments to its Struct (None when it declares none); return it with all problems.

    prefix: the text before a key on the command line, such as `--attention-config.cpu_paged`.
    """
    infos: dict[str, msgspec.structs.FieldInfo] = {}
    if struct is not None:
        infos = {info.name: info for info in msgspec.structs.fields(struct)}
    problems: list[str] = []
    converted = _converted(infos, values, prefix, problems)
    for name, info in infos.items():
        if info.required and name not in converted and name not in values:
            problems.append(f"{prefix}.{name}: required, but not given.")
    if struct is None or problems:
        return None, problems
    try:
        return struct(**converted), []
    except (TypeError, ValueError) as error:
        return None, [f"{prefix}: {error}"]


def _converted(
    infos: Mapping[str, msgspec.structs.FieldInfo], values: Mapping[str, Any], prefix: str, problems: list[str]
) -> dict[str, Any]:
    """Return the converted values by field; add sentences about unknown keys and unsuitable values to `problems`."""
    converted: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        info = infos.get(name)
        if info is None:
            valid = f"known: {', '.join(infos)}." if infos else "it takes no arguments."
            problems.append(f"{prefix}.{key}: unknown key; {valid}{nearest(name, infos)}")
            continue
        try:
            converted[name] = msgspec.convert(value, info.type, strict=False)
        except msgspec.ValidationError as error:
            problems.append(f"{prefix}.{key} {value!r}: {_expectation(info.type, value, error)}")
    return converted


def choices(hint: Any) -> list[str]:
    """Return every value that a Literal type allows, also in unions; empty for other types."""
    if hasattr(hint, "__metadata__"):
        return choices(typing.get_args(hint)[0])
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return [str(value) for value in typing.get_args(hint)]
    if origin not in (typing.Union, types.UnionType):
        return []
    words: list[str] = []
    for member in typing.get_args(hint):
        found = ["none"] if member is type(None) else choices(member)
        if not found:
            return []
        words += found
    return words


def _expectation(hint: Any, value: Any, error: msgspec.ValidationError) -> str:
    """Describe the expectation that `value` does not meet, with a hint at the nearest choice."""
    words = choices(hint)
    if not words:
        text = str(error)
        return f"{text[:1].lower()}{text[1:]}."
    alike = nearest(value, words) if isinstance(value, str) and not value.isdigit() else ""
    return f"expected one of {', '.join(words)}.{alike}"
