"""What operators order of the engines of a group, and what came of it.

Owns: the results of orders, `Orders`, the contract of whoever carries them out, and `evened`, which requests change engines so
that all engines have as many. Never does: move a request, or send a message. Called by: the moves of a group, and the
supervisor of several API processes, each of which has requests of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from core.api.errors import RequestError


class Moved(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of requests that were to change engines.

    moved:    went on in another engine, which takes their pages.
    computed: went on in another engine, which computes them again.
    stayed:   are still where they were: no other engine took them, or moving them was foretold to be no gain.
    died:     API processes that died meanwhile; their requests ended with their connections.
    """

    moved: int
    computed: int
    stayed: int
    died: int = 0


class Drained(Moved):
    """What became of the requests of a drained engine. engine: its place in the group."""

    engine: int


class Scaled(Moved, kw_only=True, omit_defaults=True):
    """What became of a group that was told how many engines to have, and of the requests of those that left.

    data_parallel_size: engines from now on.
    """

    message: str
    data_parallel_size: int


class Orders(Protocol):
    """Carries out the orders of operators. Methods raise RequestError, as those of `GroupMoves` do."""

    async def drain(self, index: int, *, ends: bool = False) -> Drained:
        """Take an engine out. ends: whether its process ends once it has no request left."""
        ...

    async def undrain(self, index: int) -> None:
        """Let an engine take requests again."""
        ...

    async def rebalance(self) -> Moved:
        """Have requests change engines until all engines have as many."""
        ...

    async def scale(self, size: int, drain_s: float) -> Scaled:
        """Have as many engines. drain_s: seconds in which requests may end where they are before the rest leaves."""
        ...

    async def is_scaling(self) -> bool:
        """Whether the number of engines is being changed."""
        ...


def last_engine(index: int) -> str:
    """Return why an engine cannot be drained, where no other one takes requests."""
    return f"No other engine takes requests now, so those of engine {index} cannot leave it; drain it when another one runs."


def check_size(size: int, most: int) -> None:
    """Raise RequestError for a number of engines that a group cannot have. most: places of the group."""
    if not 1 <= size <= most:
        raise RequestError(
            f"new_data_parallel_size is {size}; expected 1 to {most}, the most engines of this server; start it with "
            "--enable-elastic-ep and another --elastic-ep-max-dp-size for more.",
            param="new_data_parallel_size",
        )


def too_few_places(size: int, most: int) -> str:
    """Return why a group cannot grow: places whose engine is gone for good get none. most: engines that it can have."""
    return (
        f"new_data_parallel_size is {size}, and engines that died too often (--engine-restarts) are not started again, so "
        f"{most} is the most; restart the server for more."
    )


def failed_growth(size: int, reasons: Sequence[str]) -> str:
    """Return that a group has as many engines as before. reasons: of the starts that failed."""
    return f"The server goes on with the engines that it has ({size}), since a new one did not come up: {reasons[0]}"


def failed_shrinking(indexes: Sequence[int]) -> str:
    """Return that engines were to leave and have not."""
    named = ", ".join(map(str, indexes))
    return f"No other engine takes requests now, so these go on: {named}; scale again when another one runs."


def is_being_scaled(what: str) -> RequestError:
    """Return the refusal of an order while the number of engines is being changed. what: was asked for."""
    sentence = f"The number of engines is being changed (GET /is_scaling_elastic_ep); ask for {what} again after that."
    return RequestError(sentence, status=409, code="is_scaling")


def scaled(size: int, moved: Moved) -> Scaled:
    """Return the answer to an order that was carried out. moved: what became of the requests of engines that left."""
    counts = {"moved": moved.moved, "computed": moved.computed, "stayed": moved.stayed, "died": moved.died}
    return Scaled(message=f"Scaled to {size} data parallel engines", data_parallel_size=size, **counts)


def summed(outcomes: Counter[str]) -> Moved:
    """Return the number of requests by what became of them. outcomes: as counted by the metrics of moves."""
    return Moved(
        moved=outcomes["moved"], computed=outcomes["computed"] + outcomes["no_ticket"], stayed=outcomes["stayed"]
    )


def evened(counts: Mapping[int, Mapping[int, int]]) -> dict[int, list[tuple[int, int]]]:
    """Return the moves after which the numbers of all engines differ by one at most, with as few moves as possible.

    counts: for each front, its requests by engine. An engine that one of them does not name gives none and gets none: it takes
        no requests there.

    Returns the moves of each front, as places of engines (from, to).
    """
    engines = set.intersection(*(set(own) for own in counts.values())) if counts else set()
    left = {front: {engine: own[engine] for engine in engines} for front, own in counts.items()}
    totals = {engine: sum(own[engine] for own in left.values()) for engine in sorted(engines)}
    moves: dict[int, list[tuple[int, int]]] = {front: [] for front in counts}
    while totals:
        fullest = max(totals, key=lambda engine: totals[engine])
        emptiest = min(totals, key=lambda engine: totals[engine])
        if totals[fullest] - totals[emptiest] < 2:
            break
        # An engine that gives some never gets one, so none of them moves twice.
        front = max(left, key=lambda each: left[each][fullest])
        left[front][fullest] -= 1
        totals[fullest] -= 1
        totals[emptiest] += 1
        moves[front].append((fullest, emptiest))
    return moves
