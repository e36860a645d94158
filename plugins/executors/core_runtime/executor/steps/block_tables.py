"""The block tables of running sequences, one per KV group.

The table of a state group holds the n blocks to which a step writes the state, then the n blocks in which it reads it: others
for the one step with which a sequence moves its state.

Owns: the worker's copy of the tables, and a step's slice of them in the step's buffers. Never does: allocate blocks.
Called by: the persistent batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.api.specs import KVGroup
from core.api.step_plan import Int32Array, StateCopy
from core_runtime.executor.steps.buffers import StepBuffer, StepBuffers

ZERO: Final = np.array(0)
ONE: Final = np.array(1)
"""numpy computes with these in half the time that it takes with Python numbers."""


MovedStates = Mapping[int, Sequence[Sequence[int]]]
"""See `StepPlan.moved_states`."""


@dataclass(frozen=True, slots=True)
class _Table:
    """The block table of one group.

    group: the layers that share the table.
    stored: int32 [slots, blocks a sequence], the blocks of every running sequence.
    lengths: number of blocks of each slot.
    blocks: step buffer for the table rows of its sequences, where no `DeviceTables` bring them to the device.
    slots: step buffer for the cache slots of its tokens.
    """

    group: KVGroup
    stored: Int32Array
    lengths: list[int]
    blocks: StepBuffer
    slots: StepBuffer


class BlockTables:
    """The block tables of all groups. Entries before an attention window are 0 or stale and never read.

    beside: tables whose sequences and blocks are shared; only the step buffers are separate. A draft uses it.
    moves_states: whether all backends read a state where `BatchView.state_sources` says; otherwise states are copied first.
    """

    def __init__(
        self,
        buffers: StepBuffers,
        block_size: int,
        groups: Sequence[KVGroup],
        beside: BlockTables | None = None,
        *,
        moves_states: bool = False,
    ) -> None:
        self.buffers = buffers
        self.block_size = block_size
        self._device = buffers.tables
        self._modulus = np.array(block_size)
        self._tables: list[_Table] = []
        for index, group in enumerate(groups):
            blocks = buffers.block_tables[index]
            slots = buffers.slot_mappings[index]
            if beside is not None:
                stored = beside._tables[index].stored
                lengths = beside._tables[index].lengths
            else:
                stored = np.zeros_like(blocks.array) if self._device is None else self._device.host[index]
                lengths = [0] * len(stored)
            self._tables.append(_Table(group, stored, lengths, blocks, slots))
        self._states = [(index, table) for index, table in enumerate(self._tables) if table.group.kind == "state"]
        self._moves_states = moves_states
        self._moved: list[int] = []
        self._are_states_old = False
        self._keyed = [table for table in self._tables if table.group.kind != "state"]

    @property
    def groups(self) -> list[KVGroup]:
        """The KV groups, in the plan's order."""
        return [table.group for table in self._tables]

    def capacity(self, rows: Sequence[int]) -> Int32Array:
        """Return the number of tokens that fit in the blocks of each sequence, int32 [B]."""
        lengths = self._keyed[0].lengths
        counts = [lengths[row] for row in rows]
        return np.array(counts, np.int32) * np.int32(self.block_size)

    def start(self, row: int, block_ids: Sequence[Sequence[int]]) -> None:
        """Start the tables of a sequence with its first blocks."""
        for table in self._tables:
            table.lengths[row] = 0
        self.append(row, block_ids)

    def of_slot(self, row: int) -> list[NDArray[np.int64]]:
        """Return the blocks of a sequence in each group."""
        return [table.stored[row, : table.lengths[row]].astype(np.int64) for table in self._tables]

    def append(self, row: int, block_ids: Sequence[Sequence[int]]) -> None:
        """Append blocks to a sequence's tables, one list per group."""
        for group, (table, added) in enumerate(zip(self._tables, block_ids, strict=True)):
            if added:
                count = table.group.num_state_blocks
                # Spare blocks after those of a state are for copies, which the plan names.
                ids = [*added[:count], *added[:count]] if count else added
                start = table.lengths[row]
                end = start + len(ids)
                table.stored[row, start:end] = ids
                table.lengths[row] = end
                if self._device is not None:
                    self._device.append(group, row, start, len(ids))

    def copies(self, moved: MovedStates) -> list[StateCopy]:
        """Return the copies to make before `move_states`, for backends that read a state where they write it."""
        if self._moves_states:
            return []
        copies: list[StateCopy] = []
        for row, block_ids in moved.items():
            for index, table in self._states:
                sources = table.stored[row, : table.group.num_state_blocks].tolist()
                copies.append(StateCopy(sources, list(block_ids[index])))
        return copies

    def move_states(self, moved: MovedStates) -> None:
        """Give sequences other blocks for their states, and end the moves of the previous step."""
        for row in self._moved:
            self._set_states(row, (), copied=True)
        self._moved = list(moved) if self._moves_states else []
        for row, block_ids in moved.items():
            self._set_states(row, block_ids, copied=not self._moves_states)

    def _set_states(self, row: int, block_ids: Sequence[Sequence[int]], *, copied: bool) -> None:
        """Change the blocks of a sequence's state, unless `block_ids` is empty. copied: whether it is read there, too."""
        self._are_states_old = True
        for index, table in self._states:
            count = table.group.num_state_blocks
            ids = table.stored[row]
            written = ids[:count].copy()
            if block_ids:
                ids[:count] = block_ids[index]
            ids[count : 2 * count] = ids[:count] if copied else written
            if self._device is not None:
                self._device.append(index, row, 0, 2 * count)

    def advance(self, rows: Int32Array, positions: NDArray[np.int64]) -> None:
        """Advance each sequence by one token. The step must have the same sequences as the previous one.

        rows: int32 [B], slots. positions: int64 [B], position of each new token.
        """
        count = len(rows)
        if self._are_states_old:
            self._fill_states(rows)
        for table in self._keyed:
            mapping = table.slots.array[:count]
            mapping[:] = mapping + ONE
            table.slots.changed(count)
        # A slot follows the previous one except at the start of a block, which happens once in `block_size` steps.
        is_first = positions % self._modulus == ZERO
        starting = is_first.nonzero()[0]
        if not len(starting):
            return
        starting_rows = rows[starting]
        columns = positions[starting] // self.block_size
        for table in self._keyed:
            ids = table.stored[starting_rows, columns]
            if self._device is None:
                table.blocks.array[starting, columns] = ids
                table.blocks.changed(count)
            table.slots.array[starting] = ids * np.int64(self.block_size)

    def fill(self, rows: Int32Array, owner: NDArray[np.int64], positions: NDArray[np.int64], width: int) -> None:
        """Write a step's tables and slots into the buffers. A state group has no slots.

        rows: int32 [B], slots of the step's sequences.
        owner: int64 [T], index of each token's sequence.
        positions: int64 [T], position of each token.
        width: blocks of the longest sequence.
        """
        num_seqs = len(rows)
        num_tokens = len(positions)
        block, offset = np.divmod(positions, self.block_size)
        row_of_token = rows[owner]
        widths = [2 * table.group.num_state_blocks or width for table in self._tables]
        self._are_states_old = False
        for table, columns in zip(self._tables, widths, strict=True):
            if self._device is None:
                table.blocks.array[:num_seqs, :columns] = table.stored[rows, :columns]
                table.blocks.changed(num_seqs)
            if table.group.kind != "state":
                starts = table.stored[row_of_token, block] * np.int64(self.block_size)
                slots = table.slots.array[:num_tokens]
                np.add(starts, offset, out=slots)
            table.slots.changed(num_tokens)
        if self._device is not None:
            # Blocks for drafts may come before they are needed, and a step that continues this one sends only newer blocks.
            order = rows.tolist()
            self._device.use(rows, [max(table.lengths[row] for row in order) for table in self._tables])

    def _fill_states(self, rows: Int32Array) -> None:
        """Write the tables of states alone into the buffers of a step with the sequences of the previous one."""
        self._are_states_old = False
        if self._device is None:
            for _, table in self._states:
                columns = 2 * table.group.num_state_blocks
                table.blocks.array[: len(rows), :columns] = table.stored[rows, :columns]
                table.blocks.changed(len(rows))
