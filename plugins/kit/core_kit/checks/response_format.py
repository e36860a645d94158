"""Checks of response formats: a row reads what it writes, however the text is split.

Owns: the checks. Never does: know a model's own template. Called by: `core_kit.suite`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from core_formats.answers.events import AnswerEvent, ArgumentsDelta, CallEnd, CallStart, ReasoningDelta, TextDelta
from core_formats.answers.parser import ResponseParser
from core_formats.calls.writing import written_calls
from core_formats.plugin_rows import rows_of_plugin
from core_formats.response_format import ResponseFormat
from core_formats.row_files import own_rows
from core_formats.tool_spec import ToolSpec
from core_kit.case import Failure, Subject

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "count": {"type": "integer"}, "list": {"type": "array"}},
}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("first", {"text": 'a "b" <c>\n{d}', "count": 3, "list": ["x", 1]}),
    ("second", {}),
    ("first", {"text": "12"}),
]
TOOLS = [ToolSpec("first", parameters=SCHEMA), ToolSpec("second")]
CUTTINGS = 200


def has_rows(subject: Subject) -> None:
    """There is a row, and its names are not the engine's."""
    rows = _rows(subject)
    if not rows:
        raise Failure("rows() has no row")
    taken = {name for row in own_rows() for name in (*row.tool_names, *row.reasoning_names)}
    for row in rows:
        shared = sorted(taken.intersection((*row.tool_names, *row.reasoning_names)))
        if shared:
            raise Failure(f"row {row.name}: the name {shared[0]!r} is the engine's own")


def reads_what_it_writes(subject: Subject) -> None:
    """Calls that a row writes come back, and the reasoning before them."""
    for row in _rows(subject):
        if row.calls:
            events = _parsed(row, _answer(row), [])
            if _calls(events) != CALLS:
                raise Failure(f"row {row.name}: {_answer(row)!r} was read as {_calls(events)}, expected {CALLS}")
            thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
            if row.reasoning is not None and thought != "so":
                raise Failure(f"row {row.name}: the reasoning 'so' was read as {thought!r}")


def cuttings_change_nothing(subject: Subject) -> None:
    """However a text is cut, its events are the same."""
    source = random.Random(1)
    for row in _rows(subject):
        text = _answer(row) if row.calls else "so it is"
        expected = _parsed(row, text, [])
        for _ in range(CUTTINGS):
            cuts = sorted(source.randrange(len(text)) for _ in range(source.randint(1, 12)))
            if _parsed(row, text, cuts) != expected:
                raise Failure(f"row {row.name}: {text!r} cut at {cuts} was read otherwise than in one piece")


def text_stays_text(subject: Subject) -> None:
    """An answer without markers comes out unchanged."""
    text = "It is 5 < 6, [that] is {certain}.\n\nSo `f(x)` holds."
    for row in _rows(subject):
        tail = "" if row.reasoning is None else row.reasoning.close[0]
        if _parsed(row, text, [], tail) != [TextDelta(text)]:
            raise Failure(f"row {row.name}: {text!r} was read as {_parsed(row, text, [], tail)}")


CHECKS: tuple[Callable[[Subject], None], ...] = (
    has_rows,
    reads_what_it_writes,
    cuttings_change_nothing,
    text_stays_text,
)


def _rows(subject: Subject) -> list[ResponseFormat]:
    return rows_of_plugin(subject.manifest)


def _answer(row: ResponseFormat) -> str:
    thought = "" if row.reasoning is None else f"{row.reasoning.open[0]}so{row.reasoning.close[0]}"
    return thought + written_calls(row, CALLS)


def _parsed(row: ResponseFormat, text: str, cuts: list[int], tail: str = "") -> list[AnswerEvent]:
    parser = ResponseParser(row, TOOLS, tail, lambda: "id")
    events: list[AnswerEvent] = []
    before = 0
    for cut in [*cuts, len(text)]:
        events += parser.push(text[before:cut])
        before = cut
    return _together(events + parser.finish())


def _together(events: list[AnswerEvent]) -> list[AnswerEvent]:
    """Merge neighbouring events of one kind, without ids."""
    found: list[AnswerEvent] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            found[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            found[-1] = ReasoningDelta(last.text + event.text)
        elif isinstance(event, ArgumentsDelta) and isinstance(last, ArgumentsDelta):
            found[-1] = ArgumentsDelta(event.index, last.text + event.text)
        else:
            found.append(CallStart(event.index, "", event.name) if isinstance(event, CallStart) else event)
    return found


def _calls(events: list[AnswerEvent]) -> list[tuple[str, Any]]:
    names: list[str] = []
    texts: list[str] = []
    for event in events:
        if isinstance(event, CallStart):
            names.append(event.name)
            texts.append("")
        elif isinstance(event, ArgumentsDelta):
            texts[-1] += event.text
        elif isinstance(event, CallEnd) and not event.complete:
            texts[-1] = "null"
    return [(name, json.loads(text)) for name, text in zip(names, texts, strict=True)]
