"""Detection of a checkpoint's row: from its own declaration, or else from its chat template.

Owns: the choice and its reason. Never does: read files of a checkpoint. Called by: the server when it starts, and `core
config explain`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from core_formats.checkpoint_row import row_of_response_template
from core_formats.response_format import ResponseFormat
from core_formats.row_files import own_rows


class Detected(msgspec.Struct, frozen=True):
    """A row, or None, with a sentence that gives the reason."""

    row: ResponseFormat | None
    reason: str


def detect_format(
    chat_template: str | None,
    special_tokens: Collection[str] = (),
    response_template: Any = None,
    rows: Sequence[ResponseFormat] | None = None,
) -> Detected:
    """Return the row of a checkpoint.

    chat_template: its template, as Jinja.
    special_tokens: of its vocabulary.
    response_template: from its tokenizer configuration, or None.
    rows: to choose among; the engine's own by default.
    """
    among = own_rows() if rows is None else rows
    note = ""
    if response_template is not None:
        row, reason = row_of_response_template(response_template)
        if row is not None:
            return Detected(row, reason)
        note = f" {reason}"
    best = _best(chat_template or "", among)
    if best is not None:
        row, fragments = best
        found = ", ".join(repr(fragment) for fragment in fragments)
        return Detected(_without_absent_reasoning(row, chat_template or ""), f"the chat template has {found}.{note}")
    marked = _by_special_token(special_tokens, among)
    if marked is not None:
        row, token = marked
        return Detected(row, f"the vocabulary has the special token {token!r}.{note}")
    return Detected(None, f"neither chat template nor vocabulary has the markers of a known response format.{note}")


def _best(template: str, rows: Sequence[ResponseFormat]) -> tuple[ResponseFormat, tuple[str, ...]] | None:
    """Return the row with the most fragments in the template, preferring rows with calls; the first one of equals."""
    best: tuple[ResponseFormat, tuple[str, ...]] | None = None
    best_rank = (False, 0)
    for row in rows:
        if any(fragment in template for fragment in row.match_not):
            continue
        for fragments in row.match:
            rank = (bool(row.calls), sum(map(len, fragments)))
            if rank > best_rank and all(fragment in template for fragment in fragments):
                best = (row, fragments)
                best_rank = rank
    return best


def _without_absent_reasoning(row: ResponseFormat, template: str) -> ResponseFormat:
    """Return the row, without reasoning if the template does not contain its markers."""
    reasoning = row.reasoning
    if reasoning is None or reasoning.in_parts:
        return row
    if any(close.strip() in template for close in reasoning.close):
        return row
    return msgspec.structs.replace(row, reasoning=None)


def _by_special_token(
    special_tokens: Collection[str], rows: Sequence[ResponseFormat]
) -> tuple[ResponseFormat, str] | None:
    for row in rows:
        first = row.section[0] if row.section else (row.calls[0].open if row.calls else "")
        if first.strip() in special_tokens:
            return row, first.strip()
    return None
