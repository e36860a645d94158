"""Where the experts of a layer lie when several ranks share them. Torch-free.

Owns: the slots of all ranks at the start of an engine. Never does: load an expert, or move one.
Called by: the division of models (`local_spec`), the layer of experts (finds the slots of each expert), the configuration.

A slot is a place for one expert on one rank; slots are numbered through all ranks. With redundant experts, some experts have a
copy on a second rank.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from core.api.errors import UserError
from core_runtime.specs.shares import share_of

Strategy = Literal["linear", "round_robin"]


class ExpertPlacement(msgspec.Struct, frozen=True):
    """How ranks share the experts of every layer.

    strategy: linear: a rank holds a range of ids. round_robin: every N-th id, of N ranks.
    redundant: slots beyond one for each expert.
    moves: whether experts move between ranks while the engine runs.
    """

    strategy: Strategy = "linear"
    redundant: int = 0
    moves: bool = False

    @property
    def is_ordered(self) -> bool:
        """Whether ranks always hold ranges of ids, so that their weighted sums are subtrees of the whole sum."""
        return self.strategy == "linear" and not self.redundant and not self.moves


class HeldExperts(msgspec.Struct, frozen=True):
    """The experts of one layer that a rank holds.

    rank, size: the rank, and how many there are.
    count: experts of the layer.
    """

    rank: int
    size: int
    count: int
    placement: ExpertPlacement = ExpertPlacement()

    def check(self) -> None:
        """Raise UserError where the experts cannot be shared this way."""
        placement = self.placement
        share_of(self.count + placement.redundant, self.size, "experts")
        if self.per_rank > self.count:
            raise UserError(
                f"{placement.redundant} redundant experts: {self.size} ranks can use {self.count * (self.size - 1)} at most, "
                f"as a rank needs no expert twice"
            )
        if placement.strategy == "round_robin":
            share_of(self.count, self.size, "experts, which round_robin deals out,")

    @property
    def per_rank(self) -> int:
        """The number of slots of each rank."""
        return (self.count + self.placement.redundant) // self.size

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """Return the expert in each slot of a rank at the start, by id; no rank holds one twice."""
        slots = range(self.per_rank * self.size)
        if self.placement.strategy == "linear":
            return tuple(slot % self.count for slot in slots[rank * self.per_rank : (rank + 1) * self.per_rank])
        # The second copies begin one rank later.
        dealt = [slot % self.count for slot in slots if (slot % self.count + slot // self.count) % self.size == rank]
        return tuple(dealt)

    @property
    def ids(self) -> tuple[int, ...]:
        """The expert in each slot of this rank at the start."""
        return self.of_rank(self.rank)

    @property
    def slots(self) -> tuple[int, ...]:
        """The expert in each slot of all ranks at the start."""
        return tuple(expert for rank in range(self.size) for expert in self.of_rank(rank))
