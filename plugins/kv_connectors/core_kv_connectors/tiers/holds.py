"""Pages that pins hold, by owner.

Owns: `Holds`: which names are held, and for whom. Never does: know where pages are, or how long pins last. Called by: host
memory, and the marks of page files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Set
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


class Holds(Generic[Name]):
    """Names that owners hold; one may have several owners."""

    def __init__(self) -> None:
        self._of: dict[Hashable, Set[Name]] = {}
        self._counts: Counter[Name] = Counter()

    def __contains__(self, name: Name) -> bool:
        return name in self._counts

    def put(self, owner: Hashable, names: Set[Name], most: int) -> tuple[list[Name], list[Name]] | None:
        """Hold names for an owner, in place of those it had; None, and no change, if more than `most` would be held.

        Returns the names that are held from now on, and those that are no more.
        """
        counts = self._counts
        before = self._of.get(owner, frozenset())
        added = [name for name in names if name not in counts]
        dropped = [name for name in before if name not in names and counts[name] == 1]
        if names and len(counts) + len(added) - len(dropped) > most:
            return None
        counts.update(names)
        counts.subtract(before)
        for name in dropped:
            del counts[name]
        self._of[owner] = names
        if not names:
            del self._of[owner]
        return added, dropped
