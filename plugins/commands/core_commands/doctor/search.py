"""The smallest set of changes that makes a start bad, found by halving.

Owns: the search. Never does: start anything (it asks a function). Called by: the diagnosis.

It is Zeller's ddmin (Simplifying and Isolating Failure-Inducing Input, 2002) over changes that are either in force or
bypassed: a single culprit of n changes costs up to 2 log2(n) starts, and changes that are bad only together are found
together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")
IsBad = Callable[[Sequence[T]], bool]
"""Whether a start is bad in which these changes are in force and all others are bypassed."""


def smallest_bad(changes: Sequence[T], is_bad: IsBad[T]) -> list[T]:
    """Return changes that are bad together, where leaving out any one of them is good.

    All `changes` must be bad, none of them good.
    """
    found = list(changes)
    parts = 2
    while len(found) > 1:
        cut = _cut(found, parts)
        smaller = next((part for part in cut if is_bad(part)), None)
        if smaller is not None:
            found, parts = smaller, 2
            continue
        # With two parts each rest is the other part, which has been tried.
        rests = [] if len(cut) == 2 else [[each for each in found if each not in part] for part in cut]
        rest = next((rest for rest in rests if is_bad(rest)), None)
        if rest is not None:
            found, parts = rest, max(parts - 1, 2)
        elif parts >= len(found):
            return found
        else:
            parts = min(2 * parts, len(found))
    return found


def all_bad(changes: Sequence[T], is_bad: IsBad[T]) -> list[list[T]]:
    """Return every smallest set of bad changes, one after another: further ones are sought among what is left."""
    rest = list(changes)
    found: list[list[T]] = []
    while rest and (not found or is_bad(rest)):
        guilty = smallest_bad(rest, is_bad)
        found.append(guilty)
        rest = [each for each in rest if each not in guilty]
    return found


def _cut(found: Sequence[T], parts: int) -> list[list[T]]:
    """Cut a list into parts whose lengths differ by at most one."""
    bounds = [len(found) * index // parts for index in range(parts + 1)]
    return [list(found[low:high]) for low, high in pairwise(bounds)]
