"""States of a layer as float32 numbers, in whichever types they are stored.

Owns: the conversion between both. Never does: know an op. Called by: `backend.py`, the ops.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.api.specs import StateSpec
from core_runtime.contracts import BatchView
from core_runtime.layers.states import StateStore
from core_runtime.specs.kv_types import CHANCE

LARGEST = {torch.float16: 65504.0}
"""Magnitude to which numbers are limited as they are stored: a state that overflowed would never recover."""


def as_stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float32 x rounded to a storage type."""
    return x if dtype is torch.float32 else narrowed(x, dtype).float()


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x in a storage type."""
    largest = LARGEST.get(dtype)
    return x.to(dtype) if largest is None else x.clamp(-largest, largest).to(dtype)


def _widened(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the numbers of stored bytes [B, n] as float32."""
    # `contiguous` would not copy the bytes of a single sequence, which may begin at no multiple of an item.
    return stored.clone(memory_format=torch.contiguous_format).view(dtype).float()


class StoredStates:
    """The states of one layer.

    dtype: see `core.api.specs.STATE_TYPES`.
    window, rest: storage types of the window, which comes first, and of the rest.
    by_chance: whether the rest is rounded by chance.
    raw: their bytes.
    """

    def __init__(self, spec: StateSpec, dtype: str, raw: Tensor) -> None:
        self.raw = raw
        window, _, rest = dtype.partition("+")
        rest = rest or window
        self.by_chance = rest.endswith(CHANCE)
        self.window: torch.dtype = getattr(torch, window.removesuffix(CHANCE))
        self.rest: torch.dtype = getattr(torch, rest.removesuffix(CHANCE))
        self._sizes = [spec.window_size, spec.state_size - spec.window_size]
        self._bytes = [self._sizes[0] * self.window.itemsize, self._sizes[1] * self.rest.itemsize]
        self._plain = self.window is torch.float32 and self.rest is torch.float32
        if self._plain:
            self._store = StateStore(raw, (spec.state_size,))
        else:
            self._store = StateStore(raw, (spec.bytes_in(dtype),), torch.uint8)

    def read(self, view: BatchView) -> Tensor:
        """Return a copy of the states, float32 [B, numbers]; zero for a sequence that begins in this step."""
        stored = self._store.read(view)
        if self._plain:
            return stored
        parts = zip(self._parts(stored), (self.window, self.rest), strict=True)
        return torch.cat([_widened(part, dtype) for part, dtype in parts if part.shape[1]], 1)

    def write(self, view: BatchView, states: Tensor) -> None:
        """Write states [B, numbers] back to their blocks."""
        if self._plain:
            self._store.write(view, states)
            return
        stored = torch.zeros(len(states), *self._store.shape, dtype=torch.uint8, device=states.device)
        numbers = states.split(self._sizes, 1)
        for part, own, dtype in zip(self._parts(stored), numbers, (self.window, self.rest), strict=True):
            if part.shape[1]:
                part.copy_(narrowed(own, dtype).contiguous().view(torch.uint8))
        self._store.write(view, stored)

    def _parts(self, stored: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bytes of the window and of the rest, which ends with the state."""
        first, last = self._bytes
        return stored[:, :first], stored[:, stored.shape[1] - last :]
