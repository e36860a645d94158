"""The rows of a step that sample, as a kernel on a device reads them.

Owns: the copy of a step's columns in memory that the device sees, and the place of the tokens there. Never does: bring
anything to the device (whoever owns the columns does, with the other inputs of the step). Called by: `core.sampling.rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Column(Protocol):
    """One array, here and on the device."""

    array: np.ndarray
    tensor: Tensor

    def changed(self, rows: int) -> None:
        """The host has written to the first `rows` rows."""
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
    out: int64 [D] on the device, the tokens of the latest step.
    """

    which: Column
    keys: Column
    temperatures: Column
    top_k: Column
    top_p: Column
    least: Column
    out: Tensor

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
