"""The adapters of the tokens of a step.

Owns: which sequence of the batch uses which row of the adapters' tables, and from which position on. Never does: place an
adapter (`core_runtime.executor.adapters` does). Called by: the persistent batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.api.messages import EngineRequest
from core.api.step_plan import Int32Array, Slot
from core_runtime.executor.steps.buffers import StepBuffers

NONE: Final = -1
"""Table row of tokens that the base model computes."""


class AdapterRows:
    """The adapters of the batch's sequences, by slot.

    placed: table row of each placed adapter, by digest; another object changes it between steps.
    """

    def __init__(self, num_slots: int, placed: Mapping[str, int]) -> None:
        self._placed = placed
        self._rows: NDArray[np.int32] = np.full(num_slots, NONE, np.int32)
        self._begins: NDArray[np.int32] = np.zeros(num_slots, np.int32)
        self._adapted: set[Slot] = set()

    def start(self, slot: Slot, request: EngineRequest) -> None:
        """Start a sequence. Raises RuntimeError when its adapter is not placed."""
        if not request.adapter:
            return
        row = self._placed.get(request.adapter)
        if row is None:
            raise RuntimeError(f"The adapter {request.adapter:.12} is not placed; the request came too early.")
        self._rows[slot] = row
        self._begins[slot] = request.adapter_from
        self._adapted.add(slot)

    def end(self, slot: Slot) -> None:
        """Forget a sequence."""
        self._rows[slot] = NONE
        self._adapted.discard(slot)

    def row(self, slot: Slot) -> int:
        """Return the table row of a sequence's adapter; `NONE` without one."""
        return int(self._rows[slot])

    def fill(self, buffers: StepBuffers, slots: Int32Array, lens: Int32Array) -> tuple[int, ...]:
        """Write the table row of each token of a step whose positions are written.

        slots, lens: int32 [B], slots of the step's sequences and the tokens that each computes.
        Returns the rows that occur; empty: the base model computes the step.
        """
        if not self._adapted:
            return ()
        rows = self._rows[slots]
        if rows.max() == NONE:
            return ()
        num_tokens = int(lens.sum())
        positions = buffers.positions.array[:num_tokens]
        by_token = np.repeat(rows, lens)
        by_token[positions < np.repeat(self._begins[slots], lens)] = NONE
        found = np.unique(by_token)
        used = tuple(found[found != NONE].tolist())
        if used:
            assert buffers.adapter_rows is not None, "an engine with adapters has room for their rows"
            buffers.adapter_rows.array[:num_tokens] = by_token
            buffers.adapter_rows.changed(num_tokens)
        return used
