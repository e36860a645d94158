"""The way in which the served model writes reasoning, text and calls: which row, and why.

Owns: the choice between the arguments, the checkpoint and its chat template. Never does: parse or constrain.
Called by: `core.serving.app` (once), `core config explain`.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from core.api.errors import UserError
from core.formats.detection import detect_format
from core.formats.response_format import ResponseFormat
from core.formats.row_files import FormatKind, composed, format_named

DETECTED = "auto"
NONE = "none"
FLAGS: tuple[tuple[FormatKind, str], ...] = (("tools", "--tool-call-parser"), ("reasoning", "--reasoning-parser"))


class AnswerFormat(msgspec.Struct, frozen=True):
    """A row for one vocabulary.

    row:            the format.
    special_tokens: of the vocabulary, those that occur in the row's markers.
    reason:         why it is this row, as a sentence.
    """

    row: ResponseFormat
    special_tokens: tuple[str, ...] = ()
    reason: str = ""


def answer_format(
    tool_parser: str, reasoning_parser: str, chat_template: str | None, special_tokens: Collection[str]
) -> AnswerFormat:
    """Choose the row.

    tool_parser, reasoning_parser: a name, `auto` for what the chat template shows, or `none`.
    chat_template: Jinja source of conversations with tools, or None.
    special_tokens: texts of all special tokens of the vocabulary.
    Raises UserError for a name that is none.
    """
    detected, why = detect_format(chat_template, special_tokens)
    parts: list[ResponseFormat | None] = []
    reasons: list[str] = []
    for (kind, flag), name in zip(FLAGS, (tool_parser, reasoning_parser), strict=True):
        if name == DETECTED:
            parts.append(detected)
        else:
            parts.append(None if name == NONE else format_named(name, kind))
            reasons.append(f"{flag} {name}")
    if len(reasons) < len(FLAGS):
        reasons.append(why)
    row = composed(parts[0], parts[1])
    markers = msgspec.json.encode(row).decode()
    inside = sorted(token for token in special_tokens if token and msgspec.json.encode(token).decode()[1:-1] in markers)
    return AnswerFormat(row, tuple(inside), "; ".join(reasons))


def check_names(tool_parser: str, reasoning_parser: str) -> list[str]:
    """Sentences about names that no row has."""
    problems: list[str] = []
    for (kind, _), name in zip(FLAGS, (tool_parser, reasoning_parser), strict=True):
        if name in (DETECTED, NONE):
            continue
        try:
            format_named(name, kind)
        except UserError as error:
            problems.append(str(error))
    return problems
