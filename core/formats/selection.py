"""The way in which the served model writes reasoning, text and calls: which row, and why.

Owns: the choice between the arguments, files of rows and what the chat template shows. Never does: parse or constrain.
Called by: the server (once), the checks of its arguments, `core config explain`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from core.api.config import AnswerSettings
from core.api.errors import UserError
from core.formats.detection import detect_format
from core.formats.response_format import Reasoning, ResponseFormat
from core.formats.row_files import FormatKind, composed, format_named, own_rows, read_rows
from core.tokens.templates import TOOL_TEMPLATE

if TYPE_CHECKING:
    from core.tokens.tokenizer import Tokenizer

DETECTED = "auto"
NONE = "none"


class AnswerFormat(msgspec.Struct, frozen=True):
    """A row for one vocabulary.

    row:            the format.
    special_tokens: of the vocabulary, those that occur in the row's markers.
    reason:         why it is this row, as a sentence.
    """

    row: ResponseFormat
    special_tokens: tuple[str, ...] = ()
    reason: str = ""


def served_format(settings: AnswerSettings, tokenizer: Tokenizer, own_template: str | None) -> AnswerFormat:
    """The row of a model with this tokenizer. own_template: Jinja source that stands in for the checkpoint's.

    Raises UserError, as `answer_format`.
    """
    for_tools = tokenizer.named_templates.get(TOOL_TEMPLATE, tokenizer.chat_template)
    template = for_tools if own_template is None else own_template
    return answer_format(settings, template, tokenizer.special_texts, tokenizer.response_template)


def answer_format(
    settings: AnswerSettings,
    chat_template: str | None,
    special_tokens: Collection[str],
    response_template: Any = None,
) -> AnswerFormat:
    """Choose the row.

    chat_template: Jinja source of conversations with tools, or None.
    special_tokens: texts of all special tokens of the vocabulary.
    response_template: the checkpoint's own description of answers, or None.
    Raises UserError for a name that no row has, and for a file of rows that cannot be read.
    """
    rows = _known_rows(settings)
    detected = detect_format(chat_template, special_tokens, response_template, rows)
    reasons: list[str] = []
    parts: list[ResponseFormat | None] = []
    for kind, flag, name in _named(settings):
        by_name = name != DETECTED
        parts.append(_row_of(kind, name, rows) if by_name else detected.row)
        reasons.append(f"{flag} {name}" if by_name else detected.reason.rstrip("."))
    row = composed(parts[0], parts[1])
    if settings.reasoning_markers is not None:
        start, end = settings.reasoning_markers
        row = msgspec.structs.replace(row, reasoning=Reasoning(open=(start,), close=(end,)))
        reasons[1] = "--reasoning-config"
    markers = msgspec.to_builtins(row)
    inside = tuple(token for token in special_tokens if token and _occurs(token, markers))
    return AnswerFormat(row, inside, "; ".join(dict.fromkeys(reasons)))


def problems_of(settings: AnswerSettings) -> list[str]:
    """Sentences about names that no row has, and files of rows that cannot be read."""
    problems: list[str] = []
    try:
        rows = _known_rows(settings)
    except UserError as error:
        return [str(error)]
    for kind, _, name in _named(settings):
        try:
            _row_of(kind, name, rows)
        except UserError as error:
            problems.append(str(error))
    return problems


def _named(settings: AnswerSettings) -> tuple[tuple[FormatKind, str, str], ...]:
    """Kind, flag and value of both arguments."""
    return (
        ("tools", "--tool-call-parser", settings.tool_call_parser),
        ("reasoning", "--reasoning-parser", settings.reasoning_parser),
    )


def _row_of(kind: FormatKind, name: str, rows: tuple[ResponseFormat, ...]) -> ResponseFormat | None:
    """The row that a value names; None where it names none. Raises UserError."""
    return None if name in (DETECTED, NONE) else format_named(name, kind, rows)


def _known_rows(settings: AnswerSettings) -> tuple[ResponseFormat, ...]:
    rows: list[ResponseFormat] = []
    for file in settings.format_files:
        try:
            text = Path(file).expanduser().read_text(encoding="utf-8")
            rows += read_rows(text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            raise UserError(
                f"--tool-parser-plugin, --reasoning-parser-plugin {file}: no file of response formats: {error}. Formats are "
                "rows of data here, in TOML; parsers of other engines, in Python, cannot be loaded."
            ) from None
    return (*rows, *own_rows())


def _occurs(token: str, value: object) -> bool:
    """Whether a text occurs in a marker of a row, given as plain values."""
    if isinstance(value, str):
        return token in value
    if isinstance(value, dict):
        return any(_occurs(token, part) for part in value.values())
    return isinstance(value, list | tuple) and any(_occurs(token, part) for part in value)
