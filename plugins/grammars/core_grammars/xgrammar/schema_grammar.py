"""Generation of grammars for JSON schemas through xgrammar, with a single spelling of each string.

Owns: the replacement of a schema by the text of a grammar, also inside structural tags. Never does: judge a schema.
Called by: the backend.
"""

from __future__ import annotations

import json
from typing import Any

import xgrammar

from core_grammars.xgrammar.json_text import one_spelling

Format = dict[str, Any]

PLAIN = frozenset({"type", "json_schema", "style"})
"""The fields of a plain JSON part without further options."""
PARTS = ("content", "elements", "tags", "format")


def schema_grammar(schema: str, any_whitespace: bool) -> str:
    """Return the grammar of a schema as EBNF. Raises RuntimeError and ValueError for one that xgrammar does not accept."""
    grammar = xgrammar.Grammar.from_json_schema(
        schema,
        any_whitespace=any_whitespace,
        separators=None if any_whitespace else (",", ":"),
        strict_mode=False,
    )
    return one_spelling(str(grammar))


def with_grammars(value: Any, any_whitespace: bool) -> Any:
    """Return a part of a structural tag with its schemas replaced by grammars. Raises as `schema_grammar` does."""
    if isinstance(value, list):
        return [with_grammars(part, any_whitespace) for part in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "json_schema":
        return {"type": "grammar", "grammar": _part_grammar(value, any_whitespace)}
    found = dict(value)
    for name in PARTS:
        if name in found:
            found[name] = with_grammars(found[name], any_whitespace)
    return found


def _part_grammar(part: Format, any_whitespace: bool) -> str:
    """Return the grammar of a JSON part, or of the format that a model writes instead of JSON."""
    is_json = part.get("style", "json") == "json"
    if is_json and part.keys() <= PLAIN:
        return schema_grammar(json.dumps(part["json_schema"]), any_whitespace)
    whole = {"type": "structural_tag", "format": part}
    return one_spelling(str(xgrammar.Grammar.from_structural_tag(json.dumps(whole))))
