"""Copies of logits that stages change at places, on the host or where a device holds them.

Owns: the arithmetic of each change, the same to the bit in both. Never does: know why a place is changed. Called by:
`core_runtime.sampling.stages`.

A place is an entry of the flat logits: row · V + token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from core_runtime.sampling.noise import Float32, Ids

MASKED: Final = -np.inf


class Canvas(Protocol):
    """Logits float32 [R, V], changed in place. size: V."""

    size: int

    def keep(self, rows: Sequence[int], places: Ids) -> None:
        """Mask everything in some rows but these places of theirs."""
        ...

    def mask(self, places: Ids) -> None:
        """Mask places."""
        ...

    def add(self, places: Ids, values: Float32) -> None:
        """Add to places, each of which is named once."""
        ...

    def penalize(self, places: Ids, factor: Float32, frequency: Float32, presence: Float32, counts: Float32) -> None:
        """÷ or × the factor, whichever makes a token less likely, − frequency · count, − presence where there is a count."""
        ...


class HostCanvas:
    """Of a numpy array, contiguous."""

    def __init__(self, logits: Float32) -> None:
        self.size = logits.shape[1]
        self._logits = logits
        self._flat = logits.reshape(-1)  # a view: the logits are contiguous

    def keep(self, rows: Sequence[int], places: Ids) -> None:
        """See `Canvas`."""
        kept = self._flat[places]
        self._logits[list(rows)] = MASKED
        self._flat[places] = kept

    def mask(self, places: Ids) -> None:
        """See `Canvas`."""
        self._flat[places] = MASKED

    def add(self, places: Ids, values: Float32) -> None:
        """See `Canvas`."""
        self._flat[places] += values

    def penalize(self, places: Ids, factor: Float32, frequency: Float32, presence: Float32, counts: Float32) -> None:
        """See `Canvas`."""
        values = self._flat[places]
        values = np.where(values > 0, values / factor, values * factor)
        values -= frequency * counts
        values -= presence * (counts > 0)
        self._flat[places] = values


class DeviceCanvas:
    """Of a tensor, contiguous; the logits stay on its device, and each operation rounds as numpy's does."""

    def __init__(self, logits: Tensor) -> None:
        self.size = logits.shape[1]
        self._logits = logits
        self._flat = logits.view(-1)

    def keep(self, rows: Sequence[int], places: Ids) -> None:
        """See `Canvas`."""
        there = self._there(places)
        kept = self._flat.index_select(0, there)
        self._logits.index_fill_(0, self._there(np.array(rows)), MASKED)
        self._flat.index_copy_(0, there, kept)

    def mask(self, places: Ids) -> None:
        """See `Canvas`."""
        self._flat.index_fill_(0, self._there(places), MASKED)

    def add(self, places: Ids, values: Float32) -> None:
        """See `Canvas`."""
        there = self._there(places)
        sums = self._flat.index_select(0, there) + self._there(values)
        self._flat.index_copy_(0, there, sums)

    def penalize(self, places: Ids, factor: Float32, frequency: Float32, presence: Float32, counts: Float32) -> None:
        """See `Canvas`."""
        there = self._there(places)
        values = self._flat.index_select(0, there)
        factors = self._there(factor)
        values = torch.where(values > 0, values / factors, values * factors)
        values -= self._there(frequency * counts)
        values -= self._there(presence * (counts > 0))
        self._flat.index_copy_(0, there, values)

    def _there(self, array: Ids | Float32) -> Tensor:
        return torch.from_numpy(array).to(self._logits.device)
