"""The pieces of an answer with a structural tag.

Owns: these types, and the merging of neighbouring texts. Never does: read a tag, or write a grammar.
Called by: `tags` (makes them), `tag_grammar` (writes them).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Text:
    """A fixed text."""

    text: str


@dataclass(frozen=True, slots=True)
class Token:
    """A single token. index: its id."""

    index: int


@dataclass(frozen=True, slots=True)
class Span:
    """A run of tokens with any text.

    left_out: ids of excluded tokens. least, most: limits on their number; None: no limit.
    """

    left_out: frozenset[int]
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """Text that matches an expression; its end is recognized by the piece after it.

    pattern: a regular expression, between slashes.
    without: texts that it does not contain.
    not_first: texts with which it must not begin, because an alternative does.
    is_any: whether the expression matches any text.
    """

    pattern: str
    without: tuple[str, ...] = ()
    not_first: tuple[str, ...] = ()
    is_any: bool = False


@dataclass(frozen=True, slots=True)
class Inner:
    """An embedded grammar in the library's syntax.

    ends: whether its text shows its own end, as JSON does.
    """

    lark: str
    ends: bool


@dataclass(frozen=True, slots=True)
class Series:
    """Pieces in sequence."""

    parts: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternative pieces."""

    parts: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A repeated piece. most: None: no limit."""

    part: Piece
    least: int
    most: int | None


Piece = Text | Token | Span | Free | Inner | Series | Choice | Repeat


def optional(part: Piece) -> Piece:
    """Return the piece as optional."""
    return Repeat(part, 0, 1)


def flat(parts: Iterable[Piece]) -> list[Piece]:
    """Return the pieces without nested series; neighbouring texts are merged, also with the beginning of a choice."""
    kept: list[Piece] = []
    for part in parts:
        inner = flat(part.parts) if isinstance(part, Series) else [part]
        for piece in inner:
            _append(kept, piece)
    return kept


def _append(kept: list[Piece], piece: Piece) -> None:
    if isinstance(piece, Text) and not piece.text:
        return
    last = kept[-1] if kept else None
    if isinstance(last, Text) and isinstance(piece, Text):
        kept[-1] = Text(last.text + piece.text)
    elif isinstance(last, Text) and isinstance(piece, Choice) and all(map(_begins_with_text, piece.parts)):
        kept[-1] = Choice(tuple(Series((last, part)) for part in piece.parts))
    else:
        kept.append(piece)


def _begins_with_text(piece: Piece) -> bool:
    if not isinstance(piece, Series):
        return isinstance(piece, Text)
    first = next((part for part in piece.parts if part != Text("")), None)
    return first is not None and _begins_with_text(first)


def may_be_empty(piece: Piece) -> bool:
    """Whether the piece may match the empty text, as far as can be determined."""
    match piece:
        case Text(text):
            return not text
        case Token() | Inner():
            return False
        case Span(least=least):
            return least == 0
        case Free():
            return True
        case Series(parts):
            return all(map(may_be_empty, parts))
        case Choice(parts):
            return any(map(may_be_empty, parts))
        case Repeat(part, least):
            return least == 0 or may_be_empty(part)


def first_pieces(parts: Iterable[Piece]) -> list[Piece]:
    """Return all texts, tokens, spans, free texts and grammars with which a series may begin."""
    found: list[Piece] = []
    for part in parts:
        match part:
            case Series(inner):
                found += first_pieces(inner)
            case Choice(inner):
                for one in inner:
                    found += first_pieces([one])
            case Repeat(inner_part):
                found += first_pieces([inner_part])
            case _:
                found.append(part)
        if not may_be_empty(part):
            break
    return found


def ends_open(piece: Piece) -> bool:
    """Whether the end of a piece is only recognizable from the piece after it."""
    match piece:
        case Free() | Span():
            return True
        case Inner(ends=ends):
            return not ends
        case Choice(parts):
            return any(map(ends_open, parts))
        case Repeat(part):
            return ends_open(part)
        case Series(parts):
            for part in reversed(parts):
                if ends_open(part):
                    return True
                if not may_be_empty(part):
                    return False
    return False


def barred(piece: Piece, texts: tuple[str, ...]) -> Piece:
    """Return the piece with its initial free text not beginning with any of `texts`."""
    match piece:
        case Free():
            return replace(piece, not_first=tuple(dict.fromkeys((*piece.not_first, *texts))))
        case Choice(parts):
            return Choice(tuple(barred(part, texts) for part in parts))
        case Repeat(part, least, most):
            return Repeat(barred(part, texts), least, most)
        case Series(parts):
            pieces = flat(parts)
            for place, part in enumerate(pieces):
                pieces[place] = barred(part, texts)
                if not may_be_empty(part):
                    break
            return Series(tuple(pieces))
        case _:
            return piece
