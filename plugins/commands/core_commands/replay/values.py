"""Tool calls and JSON values in two answers to one request.

Owns: finding them in an answer of any API, and how two of them compare. Never does: parse model text (the server's response
formats did). Called by: `core diff`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

Kind = Literal["tool_call", "json", "text"]
Outcome = Literal["same bytes", "same value", "other value", "broken"]
SHOWN: Final = 600
"""Characters of a value in a report."""


@dataclass(frozen=True)
class ValueDifference:
    """Two values that are not the same bytes. place: where in the answer. left, right: shortened; empty: there is none."""

    kind: Kind
    place: str
    outcome: Outcome
    left: str
    right: str


def value_differences(
    body: Mapping[str, Any], left: Mapping[str, Any], right: Mapping[str, Any]
) -> list[ValueDifference]:
    """Return the calls, JSON values and texts that are not the same bytes in both answers."""
    found: list[ValueDifference] = []
    is_json = wants_json(body)
    rows = _choices(left), _choices(right)
    for index in range(max(map(len, rows))):
        one, other = (list(row[index]) if index < len(row) else [] for row in rows)
        calls = [[text for kind, text in parts if kind == "call"] for parts in (one, other)]
        found += _call_differences(index, calls)
        texts = ["".join(text for kind, text in row if kind == "text") for row in (one, other)]
        if texts[0] != texts[1]:
            kind: Kind = "json" if is_json and not calls[0] else "text"
            outcome = compared(texts[0], texts[1]) if kind == "json" else "other value"
            found.append(_difference(kind, f"choice {index}", outcome, texts))
    return found


def _call_differences(index: int, calls: Sequence[Sequence[str]]) -> list[ValueDifference]:
    """Return the calls of a choice that are not the same bytes. calls: those of the left answer, and of the right one."""
    found: list[ValueDifference] = []
    for number in range(max(map(len, calls))):
        pair = [row[number] if number < len(row) else "" for row in calls]
        outcome = compared(pair[0], pair[1])
        if outcome != "same bytes":
            found.append(_difference("tool_call", f"choice {index}, call {number}", outcome, pair))
    return found


def wants_json(body: Mapping[str, Any]) -> bool:
    """Whether a body prescribes JSON for the text of its answer."""
    form = body.get("response_format")
    kind = form.get("type") if isinstance(form, Mapping) else None
    held = body.get("structured_outputs")
    is_held = isinstance(held, Mapping) and (held.get("json") is not None or bool(held.get("json_object")))
    return kind in ("json_object", "json_schema") or body.get("guided_json") is not None or is_held


def compared(left: str, right: str) -> Outcome:
    """Compare two JSON texts. Broken: exactly one of them can be read, or is there at all."""
    if left == right:
        return "same bytes"
    values = [_value(text) for text in (left, right)]
    if (values[0] is None) != (values[1] is None):
        return "broken"
    if values[0] is None:
        return "other value"
    return "same value" if values[0] == values[1] else "other value"


def _value(text: str) -> list[Any] | None:
    """Return the value in a list of one, so that null is a value; None for a text that is no JSON."""
    try:
        return [msgspec.json.decode(text)]
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def _choices(answer: Mapping[str, Any]) -> list[list[tuple[str, str]]]:
    """Return (call or text, content) of each choice."""
    if isinstance(answer.get("choices"), list):
        return [list(_parts(choice)) for choice in answer["choices"] if isinstance(choice, Mapping)]
    return [list(_blocks(answer.get("content")))]


def _parts(choice: Mapping[str, Any]) -> list[tuple[str, str]]:
    message = choice.get("message")
    if not isinstance(message, Mapping):
        return [("text", str(choice.get("text") or ""))]
    found = [("text", str(message.get(name) or "")) for name in ("reasoning", "content")]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or call.get("custom") or {}
        found.append(("call", _call(function.get("name"), function.get("arguments") or function.get("input"))))
    return found


def _blocks(content: Any) -> list[tuple[str, str]]:
    found = []
    for block in content if isinstance(content, list) else []:
        if block.get("type") == "tool_use":
            found.append(("call", _call(block.get("name"), msgspec.json.encode(block.get("input")).decode())))
        else:
            found.append(("text", str(block.get("text") or block.get("thinking") or "")))
    return found


def _call(name: Any, arguments: Any) -> str:
    """Return a call as JSON text, whose arguments keep their bytes; broken arguments make it no JSON."""
    return f'{{"name": {msgspec.json.encode(name).decode()}, "arguments": {arguments or "{}"}}}'


def _difference(kind: Kind, place: str, outcome: Outcome, pair: list[str]) -> ValueDifference:
    left, right = (shortened(text, SHOWN) for text in pair)
    return ValueDifference(kind, place, outcome, left, right)


def shortened(text: str, most: int) -> str:
    """Return the beginning of a text, with every half of a character replaced, so that it can be written as JSON."""
    shown = text if len(text) <= most else text[: most - 3] + "..."
    return shown.encode("utf-8", "replace").decode()
