"""Sampling rows of a step, as a kernel on a device reads them.

Owns: the copy of a step's columns in memory that the device reads, and the places of tokens and logprobs.
Never does: copy to the device (the owner of the columns does, with the other inputs of the step).
Called by: `core_runtime.sampling.rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from core_runtime.sampling.logprob_rows import LogprobRows


class Column(Protocol):
    """One array on the host, with its copy on the device."""

    array: np.ndarray
    tensor: Tensor

    def changed(self, rows: int) -> None:
        """Mark the first `rows` rows as changed by the host."""
        ...


class MaskColumns(Protocol):
    """Device memory for token masks."""

    def send(self, words: NDArray[np.int32], index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Copy the masks of a step to the device: words int32 [M, W] and index int64 [R], see `MaskedRaceKernel`."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """At most D sampling rows in device memory; see `KernelRows` for the columns.

    which: int64 [D].
    keys: int64 [D, 5].
    temperatures: float32 [D].
    top_k: int64 [D].
    top_p: float64 [D].
    least: float32 [D].
    told_rows, told_counts: int64 [D], rows with logprobs, see `LogprobRows`.
    out: int64 [D] on the device, tokens of the latest step.
    memory: int64 on the device: `out`, then room for the logprobs of as many rows.
    masks: buffers for token masks.
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
        """Write `which` once for all steps: row i reads row i of the logits."""
        count = len(self.which.array)
        self.which.array[:] = np.arange(count)
        self.which.changed(count)

    def put(self, name: str, values: NDArray[Any]) -> None:
        """Copy the first rows of a column; rows beyond D are left out."""
        column: Column = getattr(self, name)
        # Rows beyond D are drawn on the host.
        count = min(len(values), len(column.array))
        column.array[:count] = values[:count]
        column.changed(count)

    def ask(self, told: LogprobRows) -> None:
        """Write which logprobs are requested."""
        self.put("told_rows", np.array(told.rows))
        self.put("told_counts", np.array(told.counts))

    def logprobs_memory(self, told: LogprobRows) -> Tensor:
        """Return the device memory for a step's logprobs."""
        first = len(self.out)
        return self.memory[first : first + told.num_words]

    def given(self, told: LogprobRows) -> Tensor:
        """Return the device memory of all tokens and a step's logprobs."""
        return self.memory[: len(self.out) + told.num_words]
