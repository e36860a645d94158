"""An index of tokens: the places of their contexts, and what followed these most often.

Owns: one text, or several concatenated ones. Never does: know sequences, requests or tenants.
Called by: the proposer (a text for each sequence), the earlier answers.

A place is the index of a token; its context of length n are the n tokens before it. For a few lengths the index stores
the newest place with each context, and for each place the previous one with the same context. Contexts are identified
by their hashes. A collision costs a wrong draft, which verification rejects.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

MOST_PLACES: Final = 16
"""Limit of the newest places with a context that are read. More of them cost more and predict the same."""
NONE: Final = -1
BORDER: Final = -1
"""Separator between two texts, which is not a token."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: the places with the longest known context.

    index: index of the context's length.
    length: length of the context; 0: no match.
    newest: the newest place with it.
    """

    index: int = 0
    length: int = 0
    newest: int = NONE


NOTHING: Final = Found()


class TextIndex:
    """The index of one text. Owned by the proposer or the earlier answers.

    Adding a token costs a table entry for each context length. A search without a match costs one or two look-ups.
    lengths: lengths of contexts in tokens, ascending.
    loops: whether a continuation that reaches the end continues with its own first tokens, so that a loop is drafted as
        a whole.
    """

    __slots__ = ("_earlier", "_latest", "_lengths", "_loops", "tokens")

    def __init__(self, lengths: Sequence[int], *, loops: bool = False) -> None:
        self._lengths = tuple(lengths)
        self._loops = loops
        self._latest: list[dict[int, int]] = [{} for _ in lengths]
        self._earlier = [array("i") for _ in lengths]
        self.tokens: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens. Each one is recorded as the continuation of the contexts that end just before it."""
        tokens = self.tokens
        begin = len(tokens)
        tokens += token_ids
        for length, latest, earlier in zip(self._lengths, self._latest, self._earlier, strict=True):
            for place in range(begin, len(tokens)):
                if length > place:
                    earlier.append(NONE)
                    continue
                context = hash(tuple(tokens[place - length : place]))
                before = latest.get(context, NONE)
                earlier.append(before)
                latest[context] = place

    def find(self, text: Sequence[int]) -> Found:
        """Return the places with the longest known context that ends `text`."""
        best = 0
        newest = NONE
        for index, length in enumerate(self._lengths):
            if length > len(text):
                break
            context = hash(tuple(text[-length:]))
            place = self._latest[index].get(context)
            if place is None:
                break  # a longer context contains this one, so it cannot match either
            best = index
            newest = place
        if newest == NONE:
            return NOTHING
        return Found(best, self._lengths[best], newest)

    def follow(self, found: Found, most: int, least: float) -> tuple[list[int], float]:
        """Return at most `most` tokens, each the most frequent continuation, and how many of them are expected to be
        right.

        least: minimum share of the places at which a token, and all before it, occurred.
        """
        rows = list(self._rows(found, most))
        num_places = len(rows)
        newest = rows[0]
        # All places agree, so there are no votes to count.
        if rows.count(newest) == num_places and BORDER not in newest:
            return list(newest), float(most)
        draft: list[int] = []
        expected = 0.0
        for nth in range(most):
            votes: dict[int, int] = {}
            for row in rows:
                votes[row[nth]] = votes.get(row[nth], 0) + 1
            token = max(votes, key=votes.__getitem__)  # ties go to the newest place
            share = votes[token] / num_places
            if token == BORDER or share < least:
                break
            draft.append(token)
            expected += share
            if len(votes) > 1:
                rows = [row for row in rows if row[nth] == token]
        return draft, expected

    def _rows(self, found: Found, most: int) -> Iterator[tuple[int, ...]]:
        """Yield the `most` tokens from each place on, newest place first."""
        tokens = self.tokens
        earlier = self._earlier[found.index]
        place = found.newest
        for _ in range(MOST_PLACES):
            if place == NONE:
                return
            row = tuple(tokens[place : place + most])
            lacking = most - len(row)
            if lacking > 0:
                row = self._longer(row, lacking)
            yield row
            place = earlier[place]

    def _longer(self, row: tuple[int, ...], lacking: int) -> tuple[int, ...]:
        """Return a row that reached the end, extended by `lacking` tokens."""
        if not self._loops:
            return row + (BORDER,) * lacking
        repeated = itertools.islice(itertools.cycle(row), lacking)
        return (*row, *repeated)
