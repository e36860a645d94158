"""Selection of the served model's row, with the reason.

Owns: the choice between the arguments and detection from the checkpoint. Never does: parse or constrain.
Called by: the server (once), its arguments, `core config explain`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from core_formats.answers.settings import AnswerSettings
from core_formats.detection import detect_format
from core_formats.response_format import Reasoning, ResponseFormat, ToolGuide
from core_formats.row_files import FormatKind, composed, format_named, names_of, own_rows
from core_tokens.chat.templates import TOOL_TEMPLATE

if TYPE_CHECKING:
    from core_tokens.tokenizer import Tokenizer

_TOOLS = re.compile(r"\btools\b")
DETECTED = "auto"
NONE = "none"
GENERIC = "generic"
"""The row of models whose chat template does not show tools."""


class AnswerFormat(msgspec.Struct, frozen=True):
    """A row bound to one vocabulary.

    row: the format.
    special_tokens: texts of the vocabulary's special tokens, of those that occur in the row's markers.
    stops: texts of those that end an answer.
    reason: why it is this row, as a sentence.
    guide: how the model learns of tools; None: its chat template shows them, or it calls none.
    form_in_reasoning: see `AnswerSettings`.
    """

    row: ResponseFormat
    special_tokens: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    reason: str = ""
    guide: ToolGuide | None = None
    form_in_reasoning: bool = False


def served_format(
    settings: AnswerSettings, tokenizer: Tokenizer, own_template: str | None, stop_ids: Collection[int]
) -> AnswerFormat:
    """Return the format of a model with this tokenizer.

    own_template: Jinja source that stands in for the checkpoint's.
    stop_ids: tokens that end an answer.

    Raises UserError, as `answer_format`.
    """
    for_tools = tokenizer.named_templates.get(TOOL_TEMPLATE, tokenizer.chat_template)
    template = for_tools if own_template is None else own_template
    return answer_format(settings, template, tokenizer.special_texts, tokenizer.response_template, stop_ids)


def answer_format(
    settings: AnswerSettings,
    chat_template: str | None,
    special_tokens: Mapping[str, int],
    response_template: Any = None,
    stop_ids: Collection[int] = (),
) -> AnswerFormat:
    """Choose the row.

    chat_template: Jinja source of conversations with tools, or None.
    special_tokens: ids of all special tokens of the vocabulary by their text.
    response_template: the checkpoint's own description of answers, or None.
    stop_ids: tokens that end an answer.
    Raises UserError for a name that no row has.
    """
    rows = (*msgspec.convert(settings.rows, tuple[ResponseFormat, ...]), *own_rows())
    detected = detect_format(chat_template, special_tokens, response_template, rows)
    reasons: list[str] = []
    parts: list[ResponseFormat | None] = []
    for kind, flag, name in named(settings):
        by_name = name != DETECTED
        parts.append(_row_of(kind, name, rows) if by_name else detected.row)
        reasons.append(f"{flag} {name}" if by_name else detected.reason.rstrip("."))
    guide = None
    if settings.tool_call_parser != NONE and not shows_tools(chat_template):
        generic = format_named(GENERIC, "tools", rows)
        own = parts[0]
        if own is None or not own.calls:
            own = parts[0] = generic
            reasons[0] = "the chat template shows no tools, so a system message describes them"
        guide = own.guide or generic.guide
    row = composed(parts[0], parts[1])
    if settings.reasoning_markers is not None:
        start, end = settings.reasoning_markers
        row = msgspec.structs.replace(row, reasoning=Reasoning(open=(start,), close=(end,)))
        reasons[1] = "--reasoning-config"
    markers = msgspec.to_builtins(row)
    inside = tuple(token for token in special_tokens if token and _occurs(token, markers))
    stops = tuple(token for token in inside if special_tokens[token] in stop_ids)
    return AnswerFormat(row, inside, stops, "; ".join(dict.fromkeys(reasons)), guide, settings.form_in_reasoning)


def shows_tools(chat_template: str | None) -> bool:
    """Whether a template reads the variable `tools`, judging by its source. Without a template there is no conversation
    to show.
    """
    return not chat_template or _TOOLS.search(chat_template) is not None


def named(settings: AnswerSettings) -> tuple[tuple[FormatKind, str, str], ...]:
    """Return kind, flag and value of both arguments."""
    return (
        ("tools", "--tool-call-parser", settings.tool_call_parser),
        ("reasoning", "--reasoning-parser", settings.reasoning_parser),
    )


def with_name(row: ResponseFormat, kind: FormatKind, name: str) -> ResponseFormat:
    """Return the row with `name` added as a further name."""
    known = names_of(row, kind)
    if name in known:
        return row
    if kind == "tools":
        return msgspec.structs.replace(row, tool_names=(*known, name))
    return msgspec.structs.replace(row, reasoning_names=(*known, name))


def _row_of(kind: FormatKind, name: str, rows: tuple[ResponseFormat, ...]) -> ResponseFormat | None:
    """Return the row that a value selects; None where it selects none. Raises UserError."""
    return None if name in (DETECTED, NONE) else format_named(name, kind, rows)


def _occurs(token: str, value: object) -> bool:
    """Whether a text occurs in a marker of a row, given as plain values."""
    if isinstance(value, str):
        return token in value
    if isinstance(value, dict):
        return any(_occurs(token, part) for part in value.values())
    return isinstance(value, list | tuple) and any(_occurs(token, part) for part in value)
