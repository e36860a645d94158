"""The grammar of one call's arguments.

Owns: the translation of a tool's schema for each kind of body. Never does: know the text around the arguments.
Called by: `core_formats.constraint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from core_formats.calls.pair_arguments import key_by_key, strings_are_said
from core_formats.calls.quoted_lark import quoted
from core_formats.response_format import BodyKind, CallForm, ResponseFormat
from core_formats.tag_parts import Format, const, json_value, sequence
from core_formats.tool_spec import ToolSpec
from core_grammars.lowering import ADDING, SPEAKING
from core_tokens.chat.message_forms import CUSTOM_INPUT

AROUND_INPUT: Mapping[BodyKind, tuple[str, str]] = MappingProxyType(
    {
        "json": (f'{{"{CUSTOM_INPUT}": "', '"}'),
        "named_json": (f'{{"{CUSTOM_INPUT}": "', '"}'),
        "loose": (f'{{"{CUSTOM_INPUT}": "', '"}'),
        "pythonic": (f'{CUSTOM_INPUT}="', '"'),
    }
)
"""Text around the input of a custom tool, in bodies that write strings as JSON."""


def arguments_format(row: ResponseFormat, form: CallForm, tool: ToolSpec) -> Format:
    """Return the structural tag part for this tool's arguments. Raises RequestError for schemas it cannot express."""
    if tool.kind == "custom":
        return _custom(row, form, tool)
    schema = _closed(tool.parameters or {"type": "object", "properties": {}})
    if form.kind in ("json", "named_json", "loose"):
        return json_value(schema)
    if form.style and not strings_are_said(tool, schema):
        return {**json_value(schema), "style": form.style}
    return key_by_key(row, form, tool, schema)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments, closed to additional properties where it leaves them open.

    A tool cannot use them, and small models keep inventing some until they run out of tokens.
    """
    speaks = any(name in schema for name in (*ADDING, *SPEAKING))
    if "properties" not in schema or speaks:
        return schema
    return {**schema, "additionalProperties": False}


def holds_input(form: CallForm, tool: ToolSpec) -> bool:
    """Whether the constraint enforces the grammar of a tool's input, if it has one."""
    is_lark = tool.grammar is not None and tool.grammar.kind == "lark"
    return not is_lark or _lark_input(form, tool) is not None


def _custom(row: ResponseFormat, form: CallForm, tool: ToolSpec) -> Format:
    """Return the part for a custom tool's input, a string.

    Where its grammar is not enforced, the caller can tell (`holds_input`), and the tool itself has to reject invalid
    input.
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
    """Return the part for input that follows a Lark grammar, if the input is a JSON string and the grammar is
    supported; else None.
    """
    if tool.grammar is None or tool.grammar.kind != "lark" or form.kind not in AROUND_INPUT:
        return None
    grammar = quoted(tool.grammar.text)
    if grammar is None:
        return None
    before, after = AROUND_INPUT[form.kind]
    inner: Format = {"type": "lark", "grammar": grammar, "ends": True}
    return sequence(const(before), inner, const(after))
