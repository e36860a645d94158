"""The choice of places for the experts of one layer, from how often each was chosen.

Owns: the rule. Never does: count, or move an expert. Called by: `balance`.

A rank's load is the sum over its slots of an expert's choices, divided by the number of its copies. The rule improves the
present places step by step: each exchange of two experts between the ranks with the highest and the lowest load, or each new
copy on the latter in place of another copy, is one move. Every move leaves each expert with a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

LEAST_GAIN: Final = 0.02
"""Moves must lower the highest load by this share of the mean, as each reads an expert."""

Move = tuple[tuple[int, int], ...]
"""(slot, its new expert) of at most one slot of each rank; they take effect together."""
Loads = NDArray[np.float64]


def rank_loads(experts: Sequence[int], loads: Loads, size: int) -> Loads:
    """Return the load of each rank. experts: the one in each slot. loads: choices of each expert."""
    slots = np.asarray(experts)
    copies = np.bincount(slots, minlength=len(loads))
    share: Loads = (loads / np.maximum(copies, 1))[slots].reshape(size, -1).sum(1)
    return share


def balance_of(loads: Loads) -> float:
    """Return the mean load of ranks over the highest one: 1 when all are equal, or nothing was chosen."""
    highest = float(loads.max())
    return float(loads.mean()) / highest if highest > 0 else 1.0


def chosen_moves(experts: Sequence[int], loads: Loads, size: int, limit: int) -> list[Move]:
    """Return up to `limit` moves in order, each of which improves the balance."""
    places = list(experts)
    moves: list[Move] = []
    while len(moves) < limit:
        ranks = rank_loads(places, loads, size)
        best, move = float(ranks.max()) - LEAST_GAIN * float(ranks.mean()), None
        for candidate in _candidates(places, loads, ranks):
            after = float(rank_loads(_moved(places, candidate), loads, size).max())
            if after < best:
                best, move = after, candidate
        if move is None:
            return moves
        places = _moved(places, move)
        moves.append(move)
    return moves


def _candidates(places: Sequence[int], loads: Loads, ranks: Loads) -> list[Move]:
    """Return the best exchange between the ranks with the highest and the lowest load, and the possible copies there."""
    per_rank = len(places) // len(ranks)
    hot, cold = int(ranks.argmax()), int(ranks.argmin())
    slots = np.asarray(places)
    copies = np.bincount(slots, minlength=len(loads))
    share = loads / np.maximum(copies, 1)
    busy = [s for s in range(hot * per_rank, (hot + 1) * per_rank)]
    idle = [s for s in range(cold * per_rank, (cold + 1) * per_rank)]
    held_by_busy, held_by_idle = {places[s] for s in busy}, {places[s] for s in idle}
    gives = [s for s in busy if places[s] not in held_by_idle]
    takes = [s for s in idle if places[s] not in held_by_busy]
    found: list[Move] = []
    if gives and takes:
        moved = share[slots[gives]][:, None] - share[slots[takes]][None, :]
        gap = np.abs(ranks[hot] - ranks[cold] - 2 * moved)
        first, second = np.unravel_index(int(gap.argmin()), gap.shape)
        one, other = gives[int(first)], takes[int(second)]
        found.append(((one, places[other]), (other, places[one])))
    if gives:
        busiest = max(gives, key=lambda slot: float(share[places[slot]]))
        found += [((slot, places[busiest]),) for slot in idle if copies[places[slot]] > 1]
    return found


def _moved(places: Sequence[int], move: Move) -> list[int]:
    after = list(places)
    for slot, expert in move:
        after[slot] = expert
    return after
