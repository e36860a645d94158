"""The grammar of arguments that are written key by key.

Owns: the translation of a tool's schema for bodies of pairs and of Python calls. Never does: know the text around the
arguments.
Called by: `core_formats.calls.arguments_grammar`.
"""

from __future__ import annotations

from typing import Any

from core.api.errors import RequestError
from core_formats.calls.value_types import argument_types
from core_formats.response_format import CallForm, ResponseFormat
from core_formats.tag_parts import Format, const, either, json_value, optional, sequence
from core_formats.tool_spec import ToolSpec

MAX_PROPERTIES = 200
DEFINITIONS = ("$defs", "definitions")
SAID_OF_STRINGS = frozenset(("type", "enum", "const", "pattern", "title", "description", "default", "examples"))
"""Keywords that `_string` supports for unquoted strings."""


def key_by_key(row: ResponseFormat, form: CallForm, tool: ToolSpec, schema: dict[str, Any]) -> Format:
    """Return required arguments in the schema's order, then the optional ones. Raises RequestError for too many."""
    properties = schema.get("properties") or {}
    if len(properties) > MAX_PROPERTIES:
        raise RequestError(
            f"tools: tool {tool.name!r} has {len(properties)} parameters; {row.name} takes at most {MAX_PROPERTIES} under a "
            "constraint.",
            param="tools",
        )
    needed = schema.get("required") or ()
    required: list[Format] = []
    others: list[Format] = []
    for key in properties:
        item = _item(form, tool, schema, key)
        wanted = required if key in needed else others
        wanted.append(item)
    separator = const(form.pair_separator if form.kind == "pairs" else ", ")
    if required:
        return _behind(required, others, separator)
    # The first item, whichever it is, has no separator before it.
    ways = [const("")]
    for number, item in enumerate(others):
        ways.append(_behind([item], others[number + 1 :], separator))
    return either(ways)


def strings_are_said(tool: ToolSpec, schema: dict[str, Any]) -> bool:
    """Whether all constraints of a schema on unquoted strings are supported here."""
    for key, value in (schema.get("properties") or {}).items():
        is_string = argument_types(tool, key) == ("string",)
        if is_string and isinstance(value, dict) and not value.keys() <= SAID_OF_STRINGS:
            return False
    return True


def _behind(first: list[Format], rest: list[Format], separator: Format) -> Format:
    """Return all of `first`, then any of the rest in order."""
    parts = [first[0]]
    for item in first[1:]:
        parts += [separator, item]
    parts += [optional(sequence(separator, item)) for item in rest]
    return sequence(*parts)


def _item(form: CallForm, tool: ToolSpec, schema: dict[str, Any], key: str) -> Format:
    """Return one key and its value."""
    given = schema["properties"][key]
    value = dict(given) if isinstance(given, dict) else {}
    for word in DEFINITIONS:
        if word in schema:
            value[word] = schema[word]
    if form.kind == "pythonic":
        return sequence(const(f"{key}="), json_value(value))
    is_string = argument_types(tool, key) == ("string",)
    before = _before_value(form, key, "string" if is_string else "json")
    inner = _string(value, form) if is_string else json_value(value)
    after = const(form.value_close)
    if not form.trim or inner["type"] == "any_text":
        return sequence(before, inner, after)
    space = optional(const(form.trim[0]))
    return sequence(before, space, inner, space, after)


def _before_value(form: CallForm, key: str, kind: str) -> Format:
    """Return a key, with the text between it and a value of this kind."""
    endings = [one.after_key for one in form.values if one.type == kind]
    if not endings:
        endings = [form.values[0].after_key]
    return either([const(f"{form.key_open}{key}{ending}{form.value_open}") for ending in endings])


def _string(value: dict[str, Any], form: CallForm) -> Format:
    """Return an unquoted string."""
    if isinstance(value.get("enum"), list):
        return either([const(str(one)) for one in value["enum"]])
    if isinstance(value.get("const"), str):
        return const(value["const"])
    if isinstance(value.get("pattern"), str):
        return {"type": "regex", "pattern": value["pattern"]}
    return {"type": "any_text", "excludes": [form.value_close.strip()]}
