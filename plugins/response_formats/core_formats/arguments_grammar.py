"""The grammar of one call's arguments.

Owns: what a tool's schema becomes in each kind of body. Never does: know what stands around the arguments.
Called by: `core_formats.constraint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from core_formats.pair_arguments import key_by_key, strings_are_said
from core_formats.quoted_lark import quoted
from core_formats.response_format import BodyKind, CallForm, ResponseFormat
from core_formats.tag_parts import Format, const, json_value, sequence
from core_formats.tool_spec import ToolSpec
from core_grammars.lowering import ADDING, SPEAKING
from core_tokens.message_forms import CUSTOM_INPUT

AROUND_INPUT: Mapping[BodyKind, tuple[str, str]] = MappingProxyType(
    {
        "json": (f'{{"{CUSTOM_INPUT}": "', '"}'),
        "named_json": (f'{{"{CUSTOM_INPUT}": "', '"}'),
        "loose": (f'{{"{CUSTOM_INPUT}": "', '"}'),
        "pythonic": (f'{CUSTOM_INPUT}="', '"'),
    }
)
"""Around the input of a custom tool, in bodies that write strings as JSON does."""


def arguments_format(row: ResponseFormat, form: CallForm, tool: ToolSpec) -> Format:
    """The part of a structural tag for the arguments of this tool. Raises RequestError for what cannot be said."""
    if tool.kind == "custom":
        return _custom(row, form, tool)
    schema = _closed(tool.parameters or {"type": "object", "properties": {}})
    if form.kind in ("json", "named_json", "loose"):
        return json_value(schema)
    if form.style and not strings_are_said(tool, schema):
        return {**json_value(schema), "style": form.style}
    return key_by_key(row, form, tool, schema)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments without any that it does not name, where it leaves that open.

    A tool has no use for them, and small models go on inventing some until their tokens are used up.
    """
    speaks = any(name in schema for name in (*ADDING, *SPEAKING))
    if "properties" not in schema or speaks:
        return schema
    return {**schema, "additionalProperties": False}


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
    parameters = {
        "type": "object",
        "properties": {CUSTOM_INPUT: text},
        "required": [CUSTOM_INPUT],
        "additionalProperties": False,
    }
    plain = ToolSpec(tool.name, parameters=parameters)
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
    return sequence(const(before), inner, const(after))
