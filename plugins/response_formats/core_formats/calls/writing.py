"""Writing of calls in a row's format, the inverse of parsing.

Owns: the text of a call. Never does: render messages (chat templates do). Called by: the constraint, tests and the
documentation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from core_formats.response_format import CallForm, ResponseFormat


class CallFrame(msgspec.Struct, frozen=True):
    """The text around the arguments of one call. `{index}` in `before` stands for the call's number."""

    before: str
    after: str


def written_calls(row: ResponseFormat, calls: Iterable[tuple[str, Mapping[str, Any] | str]]) -> str:
    """Return the text of calls, each a name and its arguments (as text only where the form `writes_json`). The row must
    have calls.
    """
    form = row.calls[0]
    before, after = group_frame(row)
    texts: list[str] = []
    for index, (name, arguments) in enumerate(calls):
        frame = call_frame(form, name)
        texts.append(frame.before.replace("{index}", str(index)) + written_arguments(form, arguments) + frame.after)
    return before + form.separator.join(texts) + after


def group_frame(row: ResponseFormat) -> tuple[str, str]:
    """Return the text before and after all calls of an answer."""
    form = row.calls[0]
    before, after = row.section or ("", "")
    if form.group == "one":
        return before, after
    opening = "[" if form.group == "list" else ""
    closing = "]" if form.group == "list" else ""
    return before + form.open + opening, closing + form.close + after


def call_frame(form: CallForm, name: str) -> CallFrame:
    """Return the text around the arguments of a call."""
    before, after = _body_frame(form, name)
    if form.group == "one":
        return CallFrame(form.open + before, after + form.close)
    return CallFrame(before, after)


def _body_frame(form: CallForm, name: str) -> tuple[str, str]:
    args_open = form.args_open[0] if form.args_open else ""
    match form.kind:
        case "json" if form.name_is_key:
            return "{" + json.dumps(name) + ": ", "}"
        case "json":
            first = f"{form.written_first}{json.dumps(form.name_key)}: {json.dumps(name)}"
            return "{" + f"{first}, {json.dumps(form.args_key)}: ", "}"
        case "named_json":
            header = form.written_header.replace("{name}", name)
            return header + args_open, form.args_close
        case "pairs":
            return form.name_open + name + args_open, ""
        case "pythonic":
            return f"{name}(", ")"
        case "loose":
            return form.name_open + name, ""


def writes_json(form: CallForm) -> bool:
    """Whether arguments are written as JSON."""
    return form.kind in ("json", "named_json")


def written_arguments(form: CallForm, arguments: Mapping[str, Any] | str) -> str:
    """Return the text of one call's arguments. arguments: as JSON text only where the form `writes_json`."""
    if isinstance(arguments, str):
        return arguments
    match form.kind:
        case "pairs":
            return form.pair_separator.join(_pair(form, key, value) for key, value in arguments.items())
        case "pythonic":
            return ", ".join(f"{key}={_python(value)}" for key, value in arguments.items())
        case "loose":
            return _loose(form, arguments)
        case _:
            return json.dumps(arguments, ensure_ascii=False)


def _pair(form: CallForm, key: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    wanted = "string" if isinstance(value, str) else "json"
    after_key = next((one.after_key for one in form.values if one.type == wanted), form.values[0].after_key)
    trim = form.trim[:1]
    return f"{form.key_open}{key}{after_key}{form.value_open}{trim}{text}{trim}{form.value_close}"


def _python(value: Any) -> str:
    return repr(value)


def _loose(form: CallForm, value: Any) -> str:
    if isinstance(value, str):
        return f"{form.string_delimiter}{value}{form.string_delimiter}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_loose(form, one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_loose(form, one) for one in value) + "]"
    return json.dumps(value)
