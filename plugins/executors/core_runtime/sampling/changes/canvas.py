"""Logits that stages change at places, on the host or on a device.

Owns: the arithmetic of each change, the same to the bit on both. Never does: know why a place is changed. Called by:
`core_runtime.sampling.changes.stages`.

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
    """Logits float32 [R, V] that are changed in place. size: V."""

    size: int

    def keep(self, rows: Sequence[int], places: Ids) -> None:
        """Mask all places of some rows but these."""
        ...

    def mask(self, places: Ids) -> None:
        """Set places to -inf."""
        ...

    def add(self, places: Ids, values: Float32) -> None:
        """Add values to places; no place may occur twice."""
        ...

    def penalize(self, places: Ids, factor: Float32, frequency: Float32, presence: Float32, counts: Float32) -> None:
        """Divide or multiply by the factor, whichever makes a token less likely; subtract frequency · count, and
        presence if counted.
        """
        ...


class HostCanvas:
    """A canvas on a contiguous numpy array."""

    def __init__(self, logits: Float32) -> None:
        self.size = logits.shape[1]
        self._logits = logits
        self._flat = logits.reshape(-1)  # a view: the logits are contiguous

    def keep(self, rows: Sequence[int], places: Ids) -> None:
        """Mask all places of some rows but these."""
        kept = self._flat[places]
        # Whole rows are overwritten and the kept places restored: there are few of them, and V places in a row.
        self._logits[list(rows)] = MASKED
        self._flat[places] = kept

    def mask(self, places: Ids) -> None:
        """Set places to -inf."""
        self._flat[places] = MASKED

    def add(self, places: Ids, values: Float32) -> None:
        """Add values to places."""
        self._flat[places] += values

    def penalize(self, places: Ids, factor: Float32, frequency: Float32, presence: Float32, counts: Float32) -> None:
        """Apply the penalties to places."""
        values = self._flat[places]
        values = np.where(values > 0, values / factor, values * factor)
        values -= frequency * counts
        values -= presence * (counts > 0)
        self._flat[places] = values


class DeviceCanvas:
    """A canvas on a contiguous tensor. The logits stay on its device, and each operation rounds as numpy's does."""

    def __init__(self, logits: Tensor) -> None:
        self.size = logits.shape[1]
        self._logits = logits
        self._flat = logits.view(-1)

    def keep(self, rows: Sequence[int], places: Ids) -> None:
        """Mask all places of some rows but these."""
        there = self._there(places)
        kept = self._flat.index_select(0, there)
        self._logits.index_fill_(0, self._there(np.array(rows)), MASKED)
        self._flat.index_copy_(0, there, kept)

    def mask(self, places: Ids) -> None:
        """Set places to -inf."""
        self._flat.index_fill_(0, self._there(places), MASKED)

    def add(self, places: Ids, values: Float32) -> None:
        """Add values to places."""
        there = self._there(places)
        sums = self._flat.index_select(0, there) + self._there(values)
        self._flat.index_copy_(0, there, sums)

    def penalize(self, places: Ids, factor: Float32, frequency: Float32, presence: Float32, counts: Float32) -> None:
        """Apply the penalties to places."""
        there = self._there(places)
        values = self._flat.index_select(0, there)
        factors = self._there(factor)
        values = torch.where(values > 0, values / factors, values * factors)
        # The products are made on the host, so that product and difference round separately, as in numpy.
        values -= self._there(frequency * counts)
        values -= self._there(presence * (counts > 0))
        self._flat.index_copy_(0, there, values)

    def _there(self, array: Ids | Float32) -> Tensor:
        return torch.from_numpy(array).to(self._logits.device)
