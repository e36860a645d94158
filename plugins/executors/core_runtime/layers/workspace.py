"""The buffers of a step: allocated once for the largest step, so that addresses stay fixed and a forward can be captured.

Owns: named buffers. Never does: allocate during a step. Called by: models (they reserve and use buffers).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

MAX_CACHED_VIEWS = 512
"""Numbers of rows whose views are kept."""
T = TypeVar("T")


class ViewCache(Generic[T]):
    """A step's views of the buffers, made once for each number of rows: a step then makes no tensor of its own."""

    __slots__ = ("_found", "_make")

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._found: dict[int, T] = {}

    def __call__(self, rows: int) -> T:
        """The views for `rows` rows."""
        found = self._found.get(rows)
        if found is None:
            if len(self._found) >= MAX_CACHED_VIEWS:
                self._found.clear()
            found = self._make(rows)
            self._found[rows] = found
        return found


class Workspace:
    """Named buffers of [max_rows, width]; `view` gives the beginning of each. Untouched pages cost no memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[str, Tensor] = {}
        self._caches: dict[Hashable, ViewCache[Any]] = {}

    def reserve(self, name: str, rows: int, width: int, dtype: torch.dtype) -> None:
        """Make sure that buffer `name` has that size; only when a model is built."""
        self._buffers[name] = torch.empty(rows, width, dtype=dtype, device=self.device)

    def buffer(self, name: str) -> Tensor:
        """The whole buffer."""
        return self._buffers[name]

    def view(self, name: str, rows: int, width: int | None = None) -> Tensor:
        """The first `rows` rows of a buffer, and of each the first `width` items where it is wider than one needs."""
        return self._buffers[name][:rows, :width]

    def cached(self, key: Hashable, make: Callable[[int], T]) -> ViewCache[T]:
        """The cache of views that everybody with an equal key shares. make: the views for a number of rows."""
        return self._caches.setdefault(key, ViewCache(make))

    @property
    def nbytes(self) -> int:
        """Bytes reserved (not necessarily touched)."""
        return sum(buffer.nbytes for buffer in self._buffers.values())


def by_heads(x: Tensor, num_heads: int) -> Tensor:
    """x [T, heads * D] as [T, heads, D], with the distance between rows that x has even when T is 1.

    `view` is free to give a lone row any distance, but a call that is recorded for one row is replayed for more.
    """
    num_tokens, width = x.shape
    size = width // num_heads
    row, item = x.stride()
    return x.as_strided((num_tokens, num_heads, size), (row, size * item, item), x.storage_offset())
