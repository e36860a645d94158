"""Translation of an answer's pieces to a Lark grammar for llguidance.

Owns: the rules, and the termination of free text. Never does: read a tag. Called by: `tags`.

The library splits text into lexemes, each as long as possible, before it applies rules. Free text therefore needs an
explicit end: before a token, with the first text that follows it, or with the answer. A grammar without one is
rejected. Lexemes at one place may still exclude an answer that the tag allows, but never allow an additional one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from core_grammars.llguidance.beginnings import alternatives, disambiguated, shown
from core_grammars.llguidance.pieces import (
    Choice,
    Free,
    Inner,
    Piece,
    Repeat,
    Series,
    Span,
    Text,
    Token,
    ends_open,
    first_pieces,
    flat,
    may_be_empty,
)

ANY_TEXT = "(?s:.*)"
MAX_WAYS = 200_000
"""Limit on the pieces visited for one grammar."""


def grammar(piece: Piece) -> str:
    """Return the Lark grammar of an answer. Raises ValueError for unsupported pieces."""
    rules = _Rules()
    start = rules.series([piece])
    return "\n".join([f"start: {start}", *rules.lines]) + "\n"


class _Rules:
    """The rules under construction. lines: the rules so far, each written once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, str] = {}
        self._num_ways = 0

    def series(self, parts: Sequence[Piece]) -> str:
        """Return pieces in sequence."""
        pieces = disambiguated(flat(parts))
        written: list[str] = []
        for place, piece in enumerate(pieces):
            self._count()
            rest = pieces[place + 1 :]
            if rest and ends_open(piece):
                written.append(self._ended(piece, rest))
                break
            written.append(self._piece(piece))
        return " ".join(written) or '""'

    def _piece(self, piece: Piece) -> str:
        """Return a piece that is last or shows its own end."""
        match piece:
            case Text(text):
                return quoted(text)
            case Token(index):
                return f"<[{index}]>"
            case Span(left_out, least, most):
                return f"<[{_all_but(left_out)}]>{_times(least, most)}"
            case Free():
                return self._rule(self._terminal(piece), "T")
            case Inner(lark):
                return self._rule(lark)
            case Series(parts):
                return self.series(parts)
            case Choice(parts):
                return self._choice(parts)
            case Repeat(part, least, most):
                if most != 1 and ends_open(part):
                    raise ValueError(f"where a repeated part ends is not seen: {shown(part)}")
                return f"{self._rule(self.series([part]))}{_times(least, most)}"

    def _choice(self, parts: Iterable[Piece]) -> str:
        """Return alternatives that begin at the same place."""
        apart = alternatives(list(parts))
        written = [self.series([part]) for part in apart]
        return self._rule(" | ".join(dict.fromkeys(written)))

    def _ended(self, piece: Piece, rest: list[Piece]) -> str:
        """Return a piece with an open end, together with everything after it."""
        match piece:
            case Choice(parts):
                return self._choice(Series((part, *rest)) for part in parts)
            case Repeat(part, 0, 1):
                return self._choice([Series((part, *rest)), Series(tuple(rest))])
            case Series(parts):
                return self.series([*parts, *rest])
            case Free():
                ending, behind = _divided(rest)
                ended = self._rule(" | ".join(dict.fromkeys(self._endings(piece, ending))))
                return f"{ended} {self.series(behind)}" if behind else ended
            case Span(left_out):
                if not all(isinstance(first, Token) and first.index in left_out for first in first_pieces(rest)):
                    raise ValueError("where a number of tokens ends is not seen: they may be what stands behind them")
                return f"{self._piece(piece)} {self.series(rest)}"
            case _:
                raise ValueError(f"where a part ends is not seen: {shown(piece)}")

    def _endings(self, free: Free, rest: list[Piece]) -> list[str]:
        """Return the ways in which free text continues with the pieces after it."""
        lines: list[str] = []
        for way in self._ways(rest):
            if not way:
                lines.append(self._piece(free))
                continue
            first, *others = way
            if isinstance(first, Token):
                lines.append(f"{self._piece(free)} {self.series(way)}")
                continue
            for text, behind in _cut(free, first).items():
                ended = self._rule(f"{self._terminal(free, text)} {quoted(text)}", "[lazy]")
                lines.append(f"{ended} {self.series([_one_of(behind), *others])}")
        return lines

    def _ways(self, rest: Sequence[Piece]) -> list[list[Piece]]:
        """Return the alternatives of `rest` as series that are empty, or begin with a token, a text, or a choice of
        texts.
        """
        self._count()
        pieces = flat(rest)
        if not pieces:
            return [[]]
        first, *others = pieces
        match first:
            case Repeat(part, least, most):
                ways = self._ways(others) if least == 0 else []
                if most == 0 or (most is None and may_be_empty(part)):
                    raise ValueError("a part that may be empty is repeated")
                fewer = Repeat(part, max(least - 1, 0), None if most is None else most - 1)
                once = [part] if most == 1 else [part, fewer]
                return ways + self._ways([*once, *others])
            case Choice(parts) if not _is_text(first):
                return [way for part in parts for way in self._ways([part, *others])]
            case Text() | Token() | Choice():
                return [pieces]
            case _:
                raise ValueError(f"where free text ends is not seen: behind it stands {shown(first)}")

    def _terminal(self, free: Free, ending: str = "") -> str:
        """Return the expression of free text. ending: the text that it ends with, and does not contain before."""
        without = dict.fromkeys(free.without)
        if ending and ending not in without and not any(text in ending for text in without):
            without[ending] = None
        without.pop("", None)
        expression = f"/{free.pattern}/"
        if without and list(without) != [ending]:
            texts = " | ".join(map(quoted, without))
            expression += f" & ~(/{ANY_TEXT}/ ({texts}) /{ANY_TEXT}/)"
        if free.not_first:
            texts = " | ".join(map(quoted, free.not_first))
            expression += f" & ~(({texts}) /{ANY_TEXT}/)"
        return self._rule(expression, "T")

    def _rule(self, body: str, manner: str = "") -> str:
        """Return the name of a rule, or of a terminal (`T`)."""
        key = f"{manner}:{body}"
        name = self._names.get(key)
        if name is None:
            is_name = manner == "" and body.isidentifier()
            if is_name:
                return body
            letter = "T" if manner == "T" else "r"
            name = self._names[key] = f"{letter}{len(self._names)}"
            self.lines.append(f"{name}{'' if manner == 'T' else manner}: {body}")
        return name

    def _count(self) -> None:
        self._num_ways += 1
        if self._num_ways > MAX_WAYS:
            raise ValueError(f"it has more than {MAX_WAYS} parts, written out")


def quoted(text: str) -> str:
    """Return a text as a Lark literal."""
    return json.dumps(text, ensure_ascii=False)


def _cut(free: Free, first: Piece) -> dict[str, list[Piece]]:
    """Return the shortest texts that can end free text, with the rest of `first` after each."""
    match first:
        case Text(text):
            ends = [text.find(one) + len(one) for one in free.without if one in text]
            if not ends and free.is_any:
                raise ValueError(f"free text may hold {text[:40]!r}, which stands behind it")
            end = min(ends, default=len(text))
            return {text[:end]: [Text(text[end:])]}
        case Choice(parts):
            found: dict[str, list[Piece]] = {}
            for part in parts:
                inner, *others = flat([part])
                for text, behind in _cut(free, inner).items():
                    found.setdefault(text, []).append(Series((_one_of(behind), *others)))
            return found
        case _:
            raise ValueError(f"where free text ends is not seen: behind it stands {shown(first)}")


def _divided(rest: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Split the pieces: those that end free text before them, up to one that is never empty, and the rest, which is
    written once.
    """
    for place, piece in enumerate(rest):
        if not may_be_empty(piece):
            return (rest, []) if ends_open(piece) else (rest[: place + 1], rest[place + 1 :])
    return rest, []


def _is_text(piece: Piece) -> bool:
    """Whether it certainly begins with a text that ends free text."""
    match piece:
        case Text():
            return True
        case Choice(parts):
            return all(bool(inner := flat([part])) and _is_text(inner[0]) for part in parts)
        case _:
            return False


def _one_of(parts: list[Piece]) -> Piece:
    return parts[0] if len(parts) == 1 else Choice(tuple(parts))


def _times(least: int, most: int | None) -> str:
    match (least, most):
        case (0, None):
            return "*"
        case (1, None):
            return "+"
        case (0, 1):
            return "?"
        case (_, None):
            return f"{{{least},}}"
        case _:
            return f"{{{least},{most}}}"


def _all_but(left_out: frozenset[int]) -> str:
    """Return all tokens except these, with neighbours joined: `^3,7-9`."""
    parts: list[str] = []
    start = last = -2
    for index in [*sorted(left_out), -2]:
        if index == last + 1:
            last = index
            continue
        if start >= 0:
            parts.append(str(start) if start == last else f"{start}-{last}")
        start = last = index
    return f"^{','.join(parts)}" if parts else "*"
