"""Which slot, of which rank, holds each expert of a layer at present.

Owns: the table that kernels look up, which changes between steps when experts move; how often each expert was chosen. Never
does: move an expert, decide about moves (`core_distributed.balance` does). Called by: the layer of experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from core_runtime.specs.expert_placement import HeldExperts


class ExpertPlaces:
    """The slots of one layer's experts on all ranks.

    held: the experts of this rank at the start.
    experts: the expert in each slot of all ranks.
    table: int32 [E, 1 + copies], see `HoldsSomeExperts.place`; its address never changes, as recorded steps read it.
    loads: int64 [E], choices of each expert since the start.
    """

    def __init__(self, held: HeldExperts, device: torch.device) -> None:
        self.held = held
        self.experts: tuple[int, ...] = ()
        self.table = torch.zeros(held.count, 1 + held.size, dtype=torch.int32, device=device)
        self.loads = torch.zeros(held.count, dtype=torch.int64, device=device)
        self.put(held.slots)

    def put(self, experts: Sequence[int]) -> None:
        """Set the expert in each slot of all ranks. Raises ValueError for an expert without a slot."""
        rows = [[0] * (1 + self.held.size) for _ in range(self.held.count)]
        for slot, expert in enumerate(experts):
            row = rows[expert]
            row[0] += 1
            row[row[0]] = slot
        if any(row[0] == 0 for row in rows):
            raise ValueError(f"expert {[row[0] for row in rows].index(0)} has no slot")
        self.experts = tuple(experts)
        self.table.copy_(torch.tensor(rows, dtype=torch.int32))
