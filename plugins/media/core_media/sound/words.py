"""The words of a transcript, with their times.

Owns: which tokens are a word: what transformers' `_combine_tokens_into_words` says. Never does: find times of tokens.
Called by: transcriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

UNSPACED: Final = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages that are written without spaces: each character that is complete is a word."""
BEFORE: Final = "\"'“¡¿([{-"
AFTER: Final = "\"'.。,，!！?？:：”)]}、"
"""Marks that belong to the word behind them, and before them."""
ALONE: Final = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
PART: Final = "\ufffd"
"""What an incomplete character is decoded to."""


@dataclass(slots=True)
class Word:
    """A word of a transcript, with the space before it. start, end: seconds."""

    word: str
    start: float
    end: float


@dataclass(slots=True)
class _Piece:
    """A run of tokens. first, last: their indices."""

    text: str
    first: int
    last: int


def words_of(
    tokens: Sequence[int], spans: Sequence[tuple[float, float]], language: str, decode: Callable[[list[int]], str]
) -> list[Word]:
    """Return the words of tokens of text. spans: seconds from and to which each token is said."""
    pieces = _characters(tokens, decode)
    if language not in UNSPACED:
        pieces = _by_spaces(pieces)
    merged = _with_marks(pieces)
    return [Word(piece.text, spans[piece.first][0], spans[piece.last][1]) for piece in merged]


def _characters(tokens: Sequence[int], decode: Callable[[list[int]], str]) -> list[_Piece]:
    """Return the shortest runs of tokens that are whole characters."""
    whole = decode(list(tokens))
    pieces: list[_Piece] = []
    first = length = 0
    for index in range(len(tokens)):
        text = decode(list(tokens[first : index + 1]))
        place = length + text.index(PART) if PART in text else -1
        if place < 0 or place >= len(whole) or whole[place] == PART:
            pieces.append(_Piece(text, first, index))
            first = index + 1
            length += len(text)
    return pieces


def _by_spaces(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Return pieces of which each begins with a space, or is a mark."""
    words: list[_Piece] = []
    for piece in pieces:
        if not words or piece.text.startswith(" ") or piece.text.strip() in ALONE:
            words.append(piece)
        else:
            words[-1] = _Piece(words[-1].text + piece.text, words[-1].first, piece.last)
    return words


def _with_marks(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Return pieces to which marks before and behind them are added."""
    behind: list[_Piece] = []
    for piece in reversed(pieces):
        if behind and piece.text.startswith(" ") and piece.text.strip() in BEFORE:
            behind[-1] = _Piece(piece.text + behind[-1].text, piece.first, behind[-1].last)
        else:
            behind.append(piece)
    words: list[_Piece] = []
    for piece in reversed(behind):
        if words and not words[-1].text.endswith(" ") and piece.text in AFTER:
            words[-1] = _Piece(words[-1].text + piece.text, words[-1].first, piece.last)
        else:
            words.append(piece)
    return words
