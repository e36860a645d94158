"""Markers that end an answer, within a structural tag.

Owns: their removal. Never does: know a row. Called by: `core_formats.constraint`.

A token that ends an answer comes after the grammar, never inside it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

Format = dict[str, Any]


def without_stops(part: Format, stops: Collection[str]) -> Format:
    """Return the format without the texts of tokens that end an answer."""
    if not stops:
        return part
    longest_first = sorted(stops, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    return _changed(part, pattern)


def _changed(part: Format, pattern: re.Pattern[str]) -> Format:
    match part["type"]:
        case "const_string":
            return {**part, "value": pattern.sub("", part["value"])}
        case "sequence" | "or":
            elements = [_changed(one, pattern) for one in part["elements"]]
            return {**part, "elements": elements}
        case "optional" | "star":
            return {**part, "content": _changed(part["content"], pattern)}
        case _:
            return part
