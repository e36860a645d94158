"""A tree of drafts: several guesses for the same position, each with guesses of its own behind it.

Owns: the shape of a tree, and the way through it that sampling takes. Never does: sample, propose, or know where keys lie.
Called by: the model runner, which knows the proposer's tree, and the executor's reading of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class DraftTree:
    """The shape; a sequence's drafts are tokens in the same order.

    parents: of each draft, the index of the draft that it follows, an earlier one; -1: the newest known token.

    The first drafts of a tree are a tree too, so a list of drafts may be cut anywhere. Raises ValueError for another order.
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
        """For each draft, the drafts from the newest known token to it, itself included."""
        paths: list[tuple[int, ...]] = []
        for index, parent in enumerate(self.parents):
            before = paths[parent] if parent >= 0 else ()
            paths.append((*before, index))
        return tuple(paths)

    @cached_property
    def first_chain(self) -> tuple[int, ...]:
        """The first guess, the first one behind it, and so on: what is left of the tree where only a chain can be verified."""
        chain: list[int] = []
        last = -1
        for index, parent in enumerate(self.parents):
            if parent == last:
                chain.append(index)
                last = index
        return tuple(chain)

    @property
    def widths(self) -> tuple[int, ...] | None:
        """How many guesses there are for each position, the first of which the next ones follow; None for another shape.

        Guesses for one position lie together, in the order of the positions.
        """
        depths = [len(path) for path in self.paths]
        firsts = {-1, *self.first_chain}
        if depths != sorted(depths) or not firsts.issuperset(self.parents):
            return None
        return tuple(depths.count(depth + 1) for depth in range(len(self.first_chain)))

    @property
    def is_chain(self) -> bool:
        """Whether no position has two guesses."""
        return len(self.first_chain) == len(self.parents)

    def cut(self, count: int) -> DraftTree:
        """The tree of the first drafts."""
        return self if count == len(self.parents) else DraftTree(self.parents[:count])

    def walk(self, drafts: Sequence[int], sampled: Sequence[int]) -> list[int]:
        """The accepted drafts, as indices, from the first position on.

        sampled: the token sampled behind the newest known token, then the one behind each draft.
        """
        found: list[int] = []
        last = -1
        for index, (parent, draft) in enumerate(zip(self.parents, drafts, strict=True)):
            if parent == last and draft == sampled[last + 1]:
                found.append(index)
                last = index
        return found
