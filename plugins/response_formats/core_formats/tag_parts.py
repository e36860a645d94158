"""Constructors for parts of structural tags.

Owns: the types that several modules construct. Never does: know a row. Called by: the modules that build constraints.
"""

from __future__ import annotations

from typing import Any

Format = dict[str, Any]


def const(text: str) -> Format:
    """Return a part for a fixed text."""
    return {"type": "const_string", "value": text}


def either(parts: list[Format]) -> Format:
    """Return a choice of the parts."""
    return parts[0] if len(parts) == 1 else {"type": "or", "elements": parts}


def optional(part: Format) -> Format:
    """Return the part as optional."""
    return {"type": "optional", "content": part}


def json_value(schema: Any) -> Format:
    """Return JSON that matches a schema."""
    return {"type": "json_schema", "json_schema": schema}


def sequence(*parts: Format) -> Format:
    """Return the parts in sequence, with neighbouring texts joined."""
    kept: list[Format] = []
    for part in parts:
        inner = part["elements"] if part["type"] == "sequence" else [part]
        for one in inner:
            _append(kept, one)
    if not kept:
        return const("")
    return kept[0] if len(kept) == 1 else {"type": "sequence", "elements": kept}


def _append(kept: list[Format], part: Format) -> None:
    is_text = part["type"] == "const_string"
    if is_text and not part["value"]:
        return
    if is_text and kept and kept[-1]["type"] == "const_string":
        kept[-1] = const(kept[-1]["value"] + part["value"])
    else:
        kept.append(part)
