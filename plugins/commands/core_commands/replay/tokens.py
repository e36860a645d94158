"""Where the tokens of a known answer differ from those of an engine, token by token.

Owns: `TokenDifference`, the first one, and all of them when the known tokens are given after each. Never does: compare texts.
Called by: `core verify`, `core diff`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.api.errors import CoreError
from core_commands.replay.computed import Computed
from core_commands.replay.engine import ReplayEngine

NUM_LOGPROBS = 20
"""Likeliest tokens among which the known one is looked for."""


@dataclass(frozen=True)
class TokenDifference:
    """One token that differs. index: in the answer. known, computed: token ids; None: that answer has ended.

    margin: how much likelier the computed token is, as a difference of log-probabilities; noise decides where it is negative.
        None: the known token is none of the likeliest, or one of both has ended.
    """

    index: int
    known: int | None
    computed: int | None
    margin: float | None = None

    def __str__(self) -> str:
        margin = "" if self.margin is None else f", margin {self.margin:.4g}"
        return f"token {self.index}: {_shown(self.known)} is known, {_shown(self.computed)} computed{margin}"


def first_index(known: Sequence[int], computed: Sequence[int]) -> int | None:
    """Return the index of the first token that differs; None if both are equal."""
    for index, (left, right) in enumerate(zip(known, computed, strict=False)):
        if left != right:
            return index
    return None if len(known) == len(computed) else min(len(known), len(computed))


async def first_difference(
    engine: ReplayEngine, computed: Computed, choice: int, known: Sequence[int]
) -> TokenDifference | None:
    """Return the first token of a choice that differs from the known ones, with its margin."""
    mine = computed.token_ids(choice)
    index = first_index(known, mine)
    if index is None:
        return None
    left = known[index] if index < len(known) else None
    right = mine[index] if index < len(mine) else None
    margin = None if left is None or right is None else await _margin(engine, computed, choice, known[:index], left)
    return TokenDifference(index, left, right, margin)


async def all_differences(
    engine: ReplayEngine, computed: Computed, choice: int, known: Sequence[int], most: int
) -> tuple[list[TokenDifference], str]:
    """Return where the engine would have gone another way, had it written the known tokens until there, at most `most` places.

    The second value says why later tokens could not be compared; empty if all were.
    """
    found: list[TokenDifference] = []
    latest = await first_difference(engine, computed, choice, known)
    while latest is not None:
        found.append(latest)
        start = latest.index + 1
        if len(found) == most or latest.known is None or start >= len(known):
            return found, ""
        try:
            latest = await _next_difference(engine, computed, choice, known, start)
        except CoreError as error:
            return found, f"after token {start - 1}: {error}"
    return found, ""


async def _next_difference(
    engine: ReplayEngine, computed: Computed, choice: int, known: Sequence[int], start: int
) -> TokenDifference | None:
    """Return the first difference from `start` on, with the known tokens before it."""
    position = start
    async for tokens, _ in engine.after(computed, choice, known[:start], known[start:]):
        for token in tokens:
            if position == len(known):
                return TokenDifference(position, None, token)
            if token != known[position]:
                margin = await _margin(engine, computed, choice, known[:position], known[position])
                return TokenDifference(position, known[position], token, margin)
            position += 1
    return None if position == len(known) else TokenDifference(position, known[position], None)


async def _margin(
    engine: ReplayEngine, computed: Computed, choice: int, past: Sequence[int], known: int
) -> float | None:
    """Return how much likelier the token after `past` is than the known one."""
    async for tokens, rows in engine.after(computed, choice, past, logprobs=NUM_LOGPROBS):
        row = rows[0]
        return row[tokens[0]].logprob - row[known].logprob if known in row else None
    return None


def _shown(token: int | None) -> str:
    return "the end" if token is None else str(token)
