"""Draft trees: several guesses for the same position, each followed by guesses of its own.

Owns: the shape of a tree, and the path that sampling takes through it. Never does: sample, propose, or know where keys lie.
Called by: the model runner, which knows the proposer's tree, and the executor's reading of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class DraftTree:
    """The shape of a tree; a sequence's drafts are tokens in the same order.

    parents: for each draft, the index of the earlier draft that it follows; -1: the newest known token.

    Any prefix of a tree is a tree, so a list of drafts may be cut anywhere. Raises ValueError for another order.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for index, parent in enumerate(self.parents):
            if not -1 <= parent < index:
                raise ValueError(
                    f"draft {index} of a tree follows draft {parent}; expected an earlier one, or -1 for the newest token."
                )

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Path of each draft: the drafts from the newest known token to it, itself included."""
        paths: list[tuple[int, ...]] = []
        for index, parent in enumerate(self.parents):
            before = paths[parent] if parent >= 0 else ()
            paths.append((*before, index))
        return tuple(paths)

    @cached_property
    def first_chain(self) -> tuple[int, ...]:
        """The first guess of each level along the first path; used if only a chain can be verified."""
        chain: list[int] = []
        last = -1
        for index, parent in enumerate(self.parents):
            if parent == last:
                chain.append(index)
                last = index
        return tuple(chain)

    @property
    def widths(self) -> tuple[int, ...] | None:
        """Number of guesses per position if only the first guess of each is continued; None for another shape.

        Guesses for one position lie together, in the order of the positions.
        """
        depths = [len(path) for path in self.paths]
        firsts = {-1, *self.first_chain}
        if depths != sorted(depths) or not firsts.issuperset(self.parents):
            return None
        return tuple(depths.count(depth + 1) for depth in range(len(self.first_chain)))

    @property
    def is_chain(self) -> bool:
        """Whether each position has one guess."""
        return len(self.first_chain) == len(self.parents)

    def cut(self, count: int) -> DraftTree:
        """Return the tree of the first `count` drafts."""
        return self if count == len(self.parents) else DraftTree(self.parents[:count])

    def walk(self, drafts: Sequence[int], sampled: Sequence[int]) -> list[int]:
        """Return the indices of the accepted drafts, from the first position on.

        sampled: the token sampled after the newest known token, then the token after each draft.
        """
        found: list[int] = []
        last = -1
        for index, (parent, draft) in enumerate(zip(self.parents, drafts, strict=True)):
            # Row 0 follows the newest known token, so the token after draft i is in row i + 1. Once a draft is
            # accepted, `last` moves on and its siblings cannot match.
            if parent == last and draft == sampled[last + 1]:
                found.append(index)
                last = index
        return found
