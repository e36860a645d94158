"""Which rank stores the keys and values of which positions.

Owns: `Division`, the arithmetic of pieces. Never does: read or write a cache, or communicate. Called by: `ContextBackend`.

A block of the scheduler's tables has one piece for each rank of a context group, and the pieces have equally many tokens, a
multiple of the span in which the attention kernels sum. Rank r of the group stores the r-th piece of every block, so all ranks
use the same tables, and the blocks of a sequence, piece by piece, are its keys in order.
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor


class Division(msgspec.Struct, frozen=True):
    """One rank's place.

    size: ranks of a context group. rank, ranks: place among all ranks that share the layers, and their number; the ranks of a
    group have successive numbers.
    """

    size: int
    rank: int
    ranks: int

    @property
    def place(self) -> int:
        """This rank's place in its context group."""
        return self.rank % self.size

    @property
    def first(self) -> int:
        """First rank of the group."""
        return self.rank - self.place

    def piece(self, block_size: int) -> int:
        """Return the tokens of a block that a rank stores. Raises ValueError for a block that cannot be divided."""
        if block_size % self.size:
            raise ValueError(
                f"a block of {block_size} tokens: expected a multiple of {self.size}, the ranks that divide it"
            )
        return block_size // self.size

    def own_slots(self, slots: Tensor, block_size: int) -> Tensor:
        """Return the slots in this rank's cache, -1 for tokens that another rank stores.

        slots: int64 [T], block * block_size + offset; negative ones belong to no token.
        """
        piece = self.piece(block_size)
        offsets = slots % block_size
        own = torch.div(slots, block_size, rounding_mode="floor") * piece + offsets % piece
        is_own = (slots >= 0) & (torch.div(offsets, piece, rounding_mode="floor") == self.place)
        return torch.where(is_own, own, -1)

    def own_counts(self, counts: Tensor, block_size: int, place: int | None = None) -> Tensor:
        """Return how many of the first `counts` tokens of a sequence a rank stores. place: of the rank; None: this one."""
        piece = self.piece(block_size)
        skipped = (self.place if place is None else place) * piece
        whole = torch.div(counts, block_size, rounding_mode="floor") * piece
        return whole + (counts % block_size - skipped).clamp(0, piece)
