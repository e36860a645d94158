"""The grammar of one call's arguments.

Owns: what a tool's schema becomes in each kind of body. Never does: know what stands around the arguments.
Called by: `core.formats.constraint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from core.api.errors import RequestError
from core.formats.quoted_lark import quoted
from core.formats.response_format import BodyKind, CallForm, ResponseFormat
from core.formats.tool_spec import ToolSpec
from core.formats.value_types import argument_types
from core.tokens.message_forms import CUSTOM_INPUT

Format = dict[str, Any]

MAX_PROPERTIES = 200  # of a tool whose arguments are written key by key

AROUND_INPUT: Mapping[BodyKind, tuple[str, str]] = MappingProxyType(
    {
        "json": (f'{{"{CUSTOM_INPUT}": "', '"}'),
        "named_json": (f'{{"{CUSTOM_INPUT}": "', '"}'),
        "loose": (f'{{"{CUSTOM_INPUT}": "', '"}'),
        "pythonic": (f'{CUSTOM_INPUT}="', '"'),
    }
)
"""Around the input of a custom tool, in bodies that write strings as JSON does."""
SAID_OF_STRINGS = frozenset(("type", "enum", "const", "pattern", "title", "description", "default", "examples"))


def arguments_format(row: ResponseFormat, form: CallForm, tool: ToolSpec) -> Format:
    """The part of a structural tag for the arguments of this tool. Raises RequestError for what cannot be said."""
    if tool.kind == "custom":
        return _custom(row, form, tool)
    schema = tool.parameters or {"type": "object", "properties": {}}
    if form.kind in ("json", "named_json", "loose"):
        return {"type": "json_schema", "json_schema": schema}
    if form.style and not _strings_are_said(tool, schema):
        return {"type": "json_schema", "json_schema": schema, "style": form.style}
    return _key_by_key(row, form, tool, schema)


def holds_input(form: CallForm, tool: ToolSpec) -> bool:
    """Whether the input of a tool follows the grammar that came with it, if one did."""
    is_lark = tool.grammar is not None and tool.grammar.kind == "lark"
    return not is_lark or _lark_input(form, tool) is not None


def _custom(row: ResponseFormat, form: CallForm, tool: ToolSpec) -> Format:
    """The input of a custom tool, a string.

    Where its grammar is not held, who asks for it hears of it (`holds_input`), and the tool itself finds what does not
    follow it.
    """
    held = _lark_input(form, tool)
    if held is not None:
        return held
    text: Format = {"type": "string"}
    if tool.grammar is not None and tool.grammar.kind == "regex":
        text["pattern"] = tool.grammar.text
    schema = {"type": "object", "properties": {CUSTOM_INPUT: text}, "required": [CUSTOM_INPUT]}
    plain = ToolSpec(tool.name, parameters={**schema, "additionalProperties": False})
    return arguments_format(row, form, plain)


def _lark_input(form: CallForm, tool: ToolSpec) -> Format | None:
    """The arguments of a tool whose input follows a Lark grammar, where the input is a JSON string and the grammar is
    understood; else None."""
    if tool.grammar is None or tool.grammar.kind != "lark" or form.kind not in AROUND_INPUT:
        return None
    grammar = quoted(tool.grammar.text)
    if grammar is None:
        return None
    before, after = AROUND_INPUT[form.kind]
    inner: Format = {"type": "lark", "grammar": grammar, "ends": True}
    return {"type": "sequence", "elements": [_const(before), inner, _const(after)]}


def _key_by_key(row: ResponseFormat, form: CallForm, tool: ToolSpec, schema: dict[str, Any]) -> Format:
    """Required arguments in the schema's order, then those that may be left out."""
    properties = schema.get("properties") or {}
    required = [key for key in properties if key in (schema.get("required") or ())]
    optional = [key for key in properties if key not in required]
    if len(properties) > MAX_PROPERTIES:
        sentence = f"tool {tool.name!r} has {len(properties)} parameters; {row.name} takes at most {MAX_PROPERTIES}"
        raise RequestError(f"tools: {sentence} under a constraint.", param="tools")
    separator = form.pair_separator if form.kind == "pairs" else ", "
    items = {key: _item(form, tool, schema, key) for key in properties}
    parts: list[Format] = []
    for number, key in enumerate(required):
        parts += [_const(separator if number else ""), items[key]]
    if required:
        parts += [_maybe([_const(separator), items[key]]) for key in optional]
        return {"type": "sequence", "elements": parts}
    chains: list[Format] = []
    for number, key in enumerate(optional):
        rest = [_maybe([_const(separator), items[other]]) for other in optional[number + 1 :]]
        chains.append({"type": "sequence", "elements": [items[key], *rest]})
    return {"type": "or", "elements": [_const(""), *chains]} if chains else _const("")


def _item(form: CallForm, tool: ToolSpec, schema: dict[str, Any], key: str) -> Format:
    """One key and its value."""
    value = dict(schema["properties"][key]) if isinstance(schema["properties"][key], dict) else {}
    value |= {word: schema[word] for word in ("$defs", "definitions") if word in schema}
    json_value: Format = {"type": "json_schema", "json_schema": value}
    if form.kind == "pythonic":
        return {"type": "sequence", "elements": [_const(f"{key}="), json_value]}
    is_string = argument_types(tool, key) == ("string",)
    wanted = "string" if is_string else "json"
    endings = [one.after_key for one in form.values if one.type == wanted] or [form.values[0].after_key]
    ways = [_const(f"{form.key_open}{key}{after_key}{form.value_open}") for after_key in endings]
    before = ways[0] if len(ways) == 1 else {"type": "or", "elements": ways}
    inner = _string(value, form) if is_string else json_value
    has_own_space = not form.trim or inner["type"] == "any_text"
    space = [] if has_own_space else [_maybe([_const(form.trim[:1])])]
    return {"type": "sequence", "elements": [before, *space, inner, *space, _const(form.value_close)]}


def _strings_are_said(tool: ToolSpec, schema: dict[str, Any]) -> bool:
    """Whether all that a schema asks of strings without quotes is said by `_string`."""
    for key, value in (schema.get("properties") or {}).items():
        if argument_types(tool, key) == ("string",) and isinstance(value, dict) and not value.keys() <= SAID_OF_STRINGS:
            return False
    return True


def _string(value: dict[str, Any], form: CallForm) -> Format:
    """A string without quotes."""
    if isinstance(value.get("enum"), list):
        return {"type": "or", "elements": [_const(str(one)) for one in value["enum"]]}
    if isinstance(value.get("const"), str):
        return _const(value["const"])
    if isinstance(value.get("pattern"), str):
        return {"type": "regex", "pattern": value["pattern"]}
    return {"type": "any_text", "excludes": [form.value_close.strip()]}


def _maybe(parts: list[Format]) -> Format:
    return {"type": "optional", "content": {"type": "sequence", "elements": parts}}


def _const(text: str) -> Format:
    return {"type": "const_string", "value": text}
