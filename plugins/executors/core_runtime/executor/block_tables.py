"""The block tables of running sequences, one for each KV group; that of a state group has the blocks of the state.

Owns: the worker's copy of the tables, and a step's slice of them in the step's buffers. Never does: allocate blocks.
Called by: the persistent batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.api.specs import KVGroup
from core.api.step_plan import Int32Array
from core_runtime.executor.step_buffers import StepBuffer, StepBuffers

ZERO: Final = np.array(0)
ONE: Final = np.array(1)
"""numpy computes with these in half the time that it takes with Python numbers."""


@dataclass(frozen=True, slots=True)
class _Table:
    """The table of one group.

    group: its layers.
    stored: int32 [slots, blocks a sequence], the blocks of every running sequence.
    lengths: of each slot, how many blocks it has.
    blocks: the step's buffer for the rows of its sequences.
    slots: the step's buffer for the places of its tokens.
    """

    group: KVGroup
    stored: Int32Array
    lengths: list[int]
    blocks: StepBuffer
    slots: StepBuffer


class BlockTables:
    """A table for each group; entries behind a window are 0 or stale and never read.

    beside: tables whose sequences and blocks these share; only the buffers of a step are their own.
    """

    def __init__(
        self, buffers: StepBuffers, block_size: int, groups: Sequence[KVGroup], beside: BlockTables | None = None
    ) -> None:
        self.buffers = buffers
        self.block_size = block_size
        self._modulus = np.array(block_size)
        self._tables: list[_Table] = []
        for index, group in enumerate(groups):
            blocks = buffers.block_tables[index]
            slots = buffers.slot_mappings[index]
            if beside is None:
                stored = np.zeros_like(blocks.array)
                lengths = [0] * len(stored)
            else:
                stored = beside._tables[index].stored
                lengths = beside._tables[index].lengths
            self._tables.append(_Table(group, stored, lengths, blocks, slots))
        self._keyed = [table for table in self._tables if table.group.kind != "state"]

    @property
    def groups(self) -> list[KVGroup]:
        """The groups, in order."""
        return [table.group for table in self._tables]

    def capacity(self, rows: Sequence[int]) -> Int32Array:
        """Tokens of each of these sequences that have places in its blocks."""
        lengths = self._keyed[0].lengths
        counts = [lengths[row] for row in rows]
        return np.array(counts, np.int32) * np.int32(self.block_size)

    def start(self, row: int, block_ids: Sequence[Sequence[int]]) -> None:
        """Begin the tables of a sequence."""
        for table in self._tables:
            table.lengths[row] = 0
        self.append(row, block_ids)

    def append(self, row: int, block_ids: Sequence[Sequence[int]]) -> None:
        """Append blocks, one list for each group."""
        for table, ids in zip(self._tables, block_ids, strict=True):
            if ids:
                start = table.lengths[row]
                end = start + len(ids)
                table.stored[row, start:end] = ids
                table.lengths[row] = end

    def advance(self, rows: Int32Array, positions: NDArray[np.int64]) -> None:
        """Each of a step's sequences, the same as in the step before, computes its next position alone."""
        count = len(rows)
        for table in self._keyed:
            mapping = table.slots.array[:count]
            mapping[:] = mapping + ONE
            table.slots.changed(count)
        is_first = positions % self._modulus == ZERO
        starting = is_first.nonzero()[0]
        if not len(starting):
            return
        starting_rows = rows[starting]
        columns = positions[starting] // self.block_size
        for table in self._keyed:
            ids = table.stored[starting_rows, columns]
            table.blocks.array[starting, columns] = ids
            table.blocks.changed(count)
            table.slots.array[starting] = ids * np.int64(self.block_size)

    def fill(self, rows: Int32Array, owner: NDArray[np.int64], positions: NDArray[np.int64], width: int) -> None:
        """Put a step's tables and slots into the buffers.

        rows: of the step's sequences.
        owner: index of each token's sequence.
        positions: of each token.
        width: blocks of the longest sequence.

        A state group has no slots.
        """
        num_seqs = len(rows)
        num_tokens = len(positions)
        block, offset = np.divmod(positions, self.block_size)
        for table in self._tables:
            columns = table.group.num_state_blocks or width
            ids = table.stored[rows, :columns]
            table.blocks.array[:num_seqs, :columns] = ids
            if table.group.kind != "state":
                starts = ids[owner, block] * np.int64(self.block_size)
                slots = table.slots.array[:num_tokens]
                np.add(starts, offset, out=slots)
            table.blocks.changed(num_seqs)
            table.slots.changed(num_tokens)
