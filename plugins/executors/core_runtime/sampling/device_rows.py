"""The rows of a step that sample, as a kernel on a device reads them.

Owns: the copy of a step's columns in memory that the device sees, and the places of the tokens and of what is told of them.
Never does: bring anything to the device (whoever owns the columns does, with the other inputs of the step).
Called by: `core_runtime.sampling.rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from core_runtime.sampling.told import Told


class Column(Protocol):
    """One array, here and on the device."""

    array: np.ndarray
    tensor: Tensor

    def changed(self, rows: int) -> None:
        """The host has written to the first `rows` rows."""
        ...


class MaskColumns(Protocol):
    """Where the device reads token masks."""

    def send(self, words: NDArray[np.int32], index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Bring the masks of a step to the device: words int32 [M, W] and index int64 [R], see `MaskedRaceKernel`."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """D rows at most; see `KernelRows` for the columns.

    which: int64 [D].
    keys: int64 [D, 5].
    temperatures: float32 [D].
    top_k: int64 [D].
    top_p: float64 [D].
    least: float32 [D].
    told_rows, told_counts: int64 [D], see `Told`.
    out: int64 [D] on the device, the tokens of the latest step.
    memory: int64 on the device: `out`, and behind it room for what is told of as many rows.
    masks: of the rows that have one.
    """

    which: Column
    keys: Column
    temperatures: Column
    top_k: Column
    top_p: Column
    least: Column
    told_rows: Column
    told_counts: Column
    out: Tensor
    memory: Tensor
    masks: MaskColumns

    def number(self) -> None:
        """Write `which` for good: row i reads row i of the logits."""
        count = len(self.which.array)
        self.which.array[:] = np.arange(count)
        self.which.changed(count)

    def put(self, name: str, values: NDArray[Any]) -> None:
        """Copy the first rows of a column; what is beyond D is not."""
        column: Column = getattr(self, name)
        count = min(len(values), len(column.array))
        column.array[:count] = values[:count]
        column.changed(count)

    def ask(self, told: Told) -> None:
        """Write what is to be told."""
        self.put("told_rows", np.array(told.rows))
        self.put("told_counts", np.array(told.counts))

    def told_memory(self, told: Told) -> Tensor:
        """The device's memory for what is told of a step."""
        first = len(self.out)
        return self.memory[first : first + told.num_words]

    def given(self, told: Told) -> Tensor:
        """All places of tokens, and what is told."""
        return self.memory[: len(self.out) + told.num_words]
