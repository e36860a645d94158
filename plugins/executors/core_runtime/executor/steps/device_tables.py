"""The block tables of a device with memory of its own, brought up to date by what has changed.

Owns: the device's copies of the tables, by slot and by row of the step, and which blocks it does not know yet.
Never does: allocate blocks, or know what a sequence computes. Called by: the block tables (they report changes), the
step's buffers (they send them).

The table of a long sequence takes kilobytes, and a step adds a block to few sequences. So a block's id travels once, with
its place, when its sequence gets it. The device keeps the tables by slot, and gathers those of a step by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.step_plan import Int32Array, Slot
from core_runtime.sampling.device_rows import Column

NO_ROW: Final = -1
Index = NDArray[np.int64]


@dataclass(slots=True)
class TableColumns:
    """The columns of a step's buffers that bring the tables up to date.

    slots: int64 [B], slot of each row.
    places, ids: int64 and int32 [C], blocks to write: index in the device's memory, and id.
    """

    slots: Column
    places: Column
    ids: Column


@dataclass(slots=True)
class Pending:
    """Blocks that the device does not know yet, as runs of the host's flat tables.

    begins, counts: first index and length of each run.
    """

    begins: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def take(self) -> Index:
        """Return the flat index of each of these blocks, and forget them."""
        begins = np.array(self.begins)
        counts = np.array(self.counts)
        self.begins.clear()
        self.counts.clear()
        total = int(counts.sum())
        if total == len(counts):
            return begins
        firsts = np.cumsum(counts) - counts
        return np.repeat(begins - firsts, counts) + np.arange(total)


class DeviceTables:
    """The block tables of one model's steps, for G groups, B sequences and M blocks a sequence.

    beside: the tables of another model with the same sequences, which brings the tables by slot up to date for both.

    host: int32 [G, B, M], the tables by slot; the block tables write them.
    rows: int32 [G, B, M] on the device, the tables of the step's sequences, in its order.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        device: torch.device,
        columns: TableColumns,
        beside: DeviceTables | None = None,
    ) -> None:
        self._shape = shape
        self._columns = columns
        self._pending = Pending()
        self._row_of_slot = np.full(shape[1], NO_ROW)
        self._slots: Int32Array = np.empty(0, np.int32)
        self._widths: Sequence[int] = ()
        self.host: Int32Array = np.zeros(shape, np.int32) if beside is None else beside.host
        # One memory, so that one call writes a block to both copies.
        num_copies = 2 if beside is None else 1
        memory = torch.zeros((num_copies, *shape), dtype=torch.int32, device=device)
        self._flat = memory.view(-1)
        self.rows = memory[-1]
        self._by_slot: Tensor = memory[0] if beside is None else beside._by_slot

    def append(self, group: int, slot: Slot, start: int, count: int) -> None:
        """Note that blocks `start` to `start + count` of a sequence were written to the host's tables."""
        _, num_slots, width = self._shape
        self._pending.begins.append((group * num_slots + slot) * width + start)
        self._pending.counts.append(count)

    def use(self, slots: Int32Array, widths: Sequence[int]) -> None:
        """Let the next step have the sequences of these slots, in this order. Without a call it has those of the previous
        one.

        widths: blocks of the longest sequence, for each group.
        """
        count = len(slots)
        self._slots = slots
        self._widths = widths
        self._row_of_slot.fill(NO_ROW)
        self._row_of_slot[slots] = np.arange(count)
        self._columns.slots.array[:count] = slots
        self._columns.slots.changed(count)

    def send(self, send: Callable[[], None]) -> None:
        """Bring the tables of the next step up to date. send: copies what has changed in the step's columns."""
        if self._pending.begins:
            self._write(send)
        else:
            send()
        if not self._widths:
            return
        count = len(self._slots)
        slots = self._columns.slots.tensor[:count]
        for source, target, width in zip(self._by_slot, self.rows, self._widths, strict=True):
            torch.index_select(source[:, :width], 0, slots, out=target[:count, :width])
        self._widths = ()

    def _write(self, send: Callable[[], None]) -> None:
        """Send the pending blocks and write them to the device's tables."""
        places, ids = self._changes()
        columns = self._columns
        room = len(columns.ids.array)
        # The first part travels with the step's other inputs; only prompts with thousands of cached blocks need more.
        for start in range(0, len(ids), room):
            part = ids[start : start + room]
            count = len(part)
            columns.ids.array[:count] = part
            columns.places.array[:count] = places[start : start + room]
            columns.ids.changed(count)
            columns.places.changed(count)
            send()
            self._flat.index_copy_(0, columns.places.tensor[:count], columns.ids.tensor[:count])

    def _changes(self) -> tuple[Index, Int32Array]:
        """Return the places and ids of all pending blocks: by slot, and by row if the step's rows stay the same."""
        by_slot = self._pending.take()
        # Read now: if a slot has changed hands, several of its runs may be pending, and all must write the same.
        ids = self.host.reshape(-1)[by_slot]
        if self._widths:  # the rows are gathered afterwards
            return by_slot, ids
        _, num_slots, width = self._shape
        slots = by_slot // width % num_slots
        rows = self._row_of_slot[slots]
        in_step = rows != NO_ROW
        by_row = self.host.size + by_slot + (rows - slots) * width
        return np.concatenate((by_slot, by_row[in_step])), np.concatenate((ids, ids[in_step]))
