"""Special tokens of a vocabulary within a structural tag.

Owns: writing them as tokens. Never does: know a row. Called by: `core.formats.constraint`.

Grammars know special tokens by their ids only: a text in a grammar is what ordinary tokens spell.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

Format = dict[str, Any]


def with_token_ids(part: Format, ids: Mapping[str, int], stops: Collection[str]) -> Format:
    """The same format, in which the texts of special tokens are tokens.

    ids:   special tokens by their text.
    stops: those of them that end an answer. They stand behind a grammar, never in it, so they are left out.
    """
    if not ids:
        return part
    pattern = re.compile("|".join(re.escape(text) for text in sorted(ids, key=len, reverse=True)))
    return _changed(part, pattern, ids, stops)


def _changed(part: Format, pattern: re.Pattern[str], ids: Mapping[str, int], stops: Collection[str]) -> Format:
    match part["type"]:
        case "const_string":
            return _divided(part["value"], pattern, ids, stops)
        case "any_text":
            # A special token is no text, so it need not be kept out.
            excludes = [text for text in part.get("excludes", ()) if not pattern.search(text)]
            return {**part, "excludes": excludes}
        case "sequence" | "or":
            return {**part, "elements": [_changed(one, pattern, ids, stops) for one in part["elements"]]}
        case "optional" | "star":
            return {**part, "content": _changed(part["content"], pattern, ids, stops)}
        case _:
            return part


def _divided(text: str, pattern: re.Pattern[str], ids: Mapping[str, int], stops: Collection[str]) -> Format:
    parts: list[Format] = []
    before = 0
    for found in pattern.finditer(text):
        parts.append({"type": "const_string", "value": text[before : found.start()]})
        if found.group() not in stops:
            parts.append({"type": "token", "token": ids[found.group()]})
        before = found.end()
    parts.append({"type": "const_string", "value": text[before:]})
    kept = [part for part in parts if part.get("value") != ""]
    if not kept:
        return {"type": "const_string", "value": ""}
    return kept[0] if len(kept) == 1 else {"type": "sequence", "elements": kept}
