"""The block tables of running sequences, one for each KV group; that of a state group has the blocks of the state.

Owns: the worker's copy of the tables, and a step's slice of them in the step's buffers. Never does: allocate blocks.
Called by: the persistent batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from core.api.specs import KVGroup
from core.api.step_plan import Int32Array
from core.executor.step_buffers import StepBuffers

ZERO: Final = np.array(0)
ONE: Final = np.array(1)
"""numpy computes with these in half the time that it takes with Python numbers."""


class BlockTables:
    """int32 [rows, blocks a sequence] for each group; entries behind a window are 0 or stale and never read."""

    def __init__(self, buffers: StepBuffers, block_size: int, groups: Sequence[KVGroup]) -> None:
        self.block_size = block_size
        self._modulus = np.array(block_size)
        self._groups = groups
        self._buffers = buffers
        self._tables = [np.zeros_like(buffer.array) for buffer in buffers.block_tables]
        self._lengths = [[0] * table.shape[0] for table in self._tables]
        every = zip(self._tables, buffers.block_tables, buffers.slot_mappings, strict=True)
        self._keyed = [parts for parts, group in zip(every, groups, strict=True) if group.kind != "state"]

    def start(self, row: int, block_ids: Sequence[Sequence[int]]) -> None:
        """Begin the tables of a sequence."""
        for lengths in self._lengths:
            lengths[row] = 0
        self.append(row, block_ids)

    def append(self, row: int, block_ids: Sequence[Sequence[int]]) -> None:
        """Append blocks, one list for each group."""
        for table, lengths, ids in zip(self._tables, self._lengths, block_ids, strict=True):
            if ids:
                start = lengths[row]
                lengths[row] = end = start + len(ids)
                table[row, start:end] = ids

    def advance(self, rows: Int32Array, positions: NDArray[np.int64]) -> None:
        """Each of a step's sequences, the same as in the step before, computes its next position alone."""
        starting = (positions % self._modulus == ZERO).nonzero()[0]
        for _, _, slots in self._keyed:
            mapping = slots.array[: len(rows)]
            mapping[:] = mapping + ONE
            slots.changed(len(rows))
        if not len(starting):
            return
        columns = positions[starting] // self.block_size
        for stored, tables, slots in self._keyed:
            blocks = stored[rows[starting], columns]
            tables.array[starting, columns] = blocks
            tables.changed(len(rows))
            slots.array[starting] = blocks * np.int64(self.block_size)

    def fill(
        self, rows: Int32Array, owner: NDArray[np.int64], positions: NDArray[np.int64], width: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Put a step's tables and slots into the buffers; returns them, (block_table, slot_mapping) for each group.

        rows: of the step's sequences. owner, positions: index of the sequence and position of each token. width: blocks
        of the longest sequence. A state group has no slots.
        """
        block, offset = np.divmod(positions, self.block_size)
        filled: list[tuple[Tensor, Tensor]] = []
        buffers = self._buffers
        every = zip(self._tables, buffers.block_tables, buffers.slot_mappings, self._groups, strict=True)
        for stored, tables, slots, group in every:
            columns = group.num_state_blocks or width
            tables.array[: len(rows), :columns] = table = stored[rows, :columns]
            if group.kind != "state":
                np.add(table[owner, block] * np.int64(self.block_size), offset, out=slots.array[: len(positions)])
            filled.append((tables.upload(len(rows)), slots.upload(len(positions))))
        return filled
