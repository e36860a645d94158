"""Disambiguation of pieces that begin at the same place.

Owns: the exclusion of free text that begins like a neighbouring piece. Never does: write rules. Called by:
`tag_grammar`.
"""

from __future__ import annotations

from core_grammars.llguidance.pieces import (
    Free,
    Inner,
    Piece,
    Series,
    Span,
    Text,
    Token,
    barred,
    first_pieces,
    flat,
    may_be_empty,
)


def disambiguated(pieces: list[Piece]) -> list[Piece]:
    """Return a series in which free text does not begin like an optional part before it."""
    found = list(pieces)
    for place, piece in enumerate(pieces[:-1]):
        if may_be_empty(piece) and not isinstance(piece, Free | Span):
            one, other = alternatives([piece, Series(tuple(found[place + 1 :]))])
            found[place:] = [one, *flat([other])]
    return found


def alternatives(parts: list[Piece]) -> list[Piece]:
    """Return alternatives in which free text does not begin like another alternative. Raises ValueError when they
    cannot be distinguished.
    """
    firsts = [first_pieces([part]) for part in parts]
    if not any(isinstance(first, Free | Span) for list_ in firsts for first in list_):
        return parts
    firsts = [first_pieces(flat([part])) for part in parts]
    found: list[Piece] = []
    for place, part in enumerate(parts):
        others = [first for list_ in (*firsts[:place], *firsts[place + 1 :]) for first in list_]
        found.append(_distinguished(part, firsts[place], others))
    return found


def _distinguished(part: Piece, own: list[Piece], others: list[Piece]) -> Piece:
    """Return an alternative whose free text does not begin like others. own, others: their first pieces."""
    free = [first for first in own if isinstance(first, Free) and first.is_any]
    spans = [first for first in own if isinstance(first, Span)]
    if not free and not spans:
        return part
    texts = _other_texts(others, free, spans)
    return barred(part, texts) if texts else part


def _other_texts(others: list[Piece], free: list[Free], spans: list[Span]) -> tuple[str, ...]:
    """Return the texts with which neighbouring free text must not begin."""
    texts: dict[str, None] = {}
    for other in others:
        if isinstance(other, Text) and not spans:
            if other.text and not _hold_out(free, other.text):
                texts[other.text] = None
        elif not _is_apart(other, free, spans):
            raise ValueError(f"free text begins at the same place as {shown(other)}")
    return tuple(texts)


def _hold_out(free: list[Free], text: str) -> bool:
    """Whether no free text can contain `text`."""
    return all(any(one in text for one in part.without) for part in free)


def _is_apart(other: Piece, free: list[Free], spans: list[Span]) -> bool:
    """Whether a piece that is no text differs from neighbouring free text without more being done. Raises ValueError for
    another free text.
    """
    match other:
        case Token(index):
            return all(index in span.left_out for span in spans)
        case Free(pattern=pattern) if other.is_any and not spans:
            if any(part.pattern != pattern or part.without != other.without for part in free):
                raise ValueError("two free texts begin at the same place")
            return True
        case Span():
            return bool(spans) and not free
        case _:
            return False


def shown(piece: Piece) -> str:
    """Return a piece's description for messages."""
    match piece:
        case Text(text):
            return f"the text {text[:40]!r}"
        case Inner():
            return "a grammar or a schema"
        case Free():
            return "a regular expression or free text"
        case _:
            return f"a {type(piece).__name__.lower()}"
