"""A row's markers in the form that readers search for.

Owns: `RowMarkers`, `FormMarkers`, the texts of a row. Never does: read an answer. Called by: the parser, the server's
preparation.

White space around a marker is ignored. A special token within a marker matches only that token, not the same text
spelled by other tokens.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from core_formats.answers.reader import TOKEN_OPEN, TOKEN_SHUT, Literals
from core_formats.response_format import CallForm, ResponseFormat


class FormMarkers:
    """The markers of one form of call. Only those of its kind are set."""

    def __init__(self, form: CallForm, tokens: frozenset[str]) -> None:
        def wrap(text: str) -> str:
            return with_tokens(text.strip(), tokens)

        self.form = form
        self.open = wrap(form.open)
        self.closes = tuple(wrap(text) for text in (form.close, *form.also_close) if text.strip())
        self.close = Literals(self.closes)
        self.args_open = tuple(wrap(text) for text in form.args_open if text.strip())
        self.args_close = Literals([wrap(form.args_close)])
        self.name_open = wrap(form.name_open)
        self.key_open = wrap(form.key_open)
        self.after_keys = {wrap(value.after_key) or value.after_key: value.type for value in form.values}
        self.after_key = Literals(self.after_keys)
        self.value_open = Literals([wrap(form.value_open)])
        self.value_close = Literals([wrap(form.value_close)])
        self.string_delimiter = wrap(form.string_delimiter)
        self.header = re.compile(form.header, re.DOTALL)


class RowMarkers:
    """The markers of a row that separate its parts."""

    def __init__(self, row: ResponseFormat, tokens: frozenset[str]) -> None:
        def wrap(text: str) -> str:
            return with_tokens(text.strip(), tokens)

        self.row = row
        reasoning = row.reasoning
        self.reasoning_open = () if reasoning is None else tuple(map(wrap, reasoning.open))
        self.reasoning_close = () if reasoning is None else tuple(map(wrap, reasoning.close))
        self.dropped = tuple(wrap(text) for text in (*(row.content or ()), *row.dropped) if text.strip())
        self.section_open = wrap(row.section[0]) if row.section else ""
        self.section_close = wrap(row.section[1]) if row.section else ""
        self.forms = tuple(FormMarkers(form, tokens) for form in row.calls)
        self.marked = tuple(form for form in self.forms if form.open)
        self.bare = tuple(form for form in self.forms if not form.open)

    def forms_opened_by(self, marker: str) -> tuple[FormMarkers, ...]:
        """Return the forms of call that begin with this marker."""
        return tuple(form for form in self.marked if form.open == marker)


@lru_cache(maxsize=64)
def row_markers(row: ResponseFormat, tokens: frozenset[str]) -> RowMarkers:
    """Return the markers of a row for a vocabulary with these special tokens."""
    return RowMarkers(row, tokens)


def with_tokens(text: str, tokens: frozenset[str]) -> str:
    """Return the text with each special token enclosed in `TOKEN_OPEN` and `TOKEN_SHUT`."""
    inside = sorted((token for token in tokens if token and token in text), key=len, reverse=True)
    if not inside:
        return text
    pattern = "|".join(map(re.escape, inside))
    return re.sub(pattern, lambda found: f"{TOKEN_OPEN}{found.group()}{TOKEN_SHUT}", text)


def markers_of(row: ResponseFormat) -> tuple[str, ...]:
    """Return all texts that a row makes models write, including its markers."""
    return tuple(dict.fromkeys(_texts(msgspec.to_builtins(row))))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    rows = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for item in rows for text in _texts(item)]
