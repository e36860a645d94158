"""Buffers of a step, allocated once for the largest step, so that addresses stay fixed and a forward pass can be captured.

Owns: named buffers. Never does: allocate during a step. Called by: models (they reserve and use buffers).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

MAX_CACHED_VIEWS = 512
"""Maximum row counts whose views are cached."""
T = TypeVar("T")


class ViewCache(Generic[T]):
    """A cache of buffer views by number of rows, so that a step creates no tensors."""

    __slots__ = ("_found", "_make")

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._found: dict[int, T] = {}

    def __call__(self, rows: int) -> T:
        """Return the views for `rows` rows."""
        found = self._found.get(rows)
        if found is None:
            if len(self._found) >= MAX_CACHED_VIEWS:
                self._found.clear()
            found = self._make(rows)
            self._found[rows] = found
        return found


class Workspace:
    """Named buffers of [max_rows, width]. Pages that are never touched cost no memory. A model owns it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[str, Tensor] = {}
        self._caches: dict[Hashable, ViewCache[Any]] = {}

    def reserve(self, name: str, rows: int, width: int, dtype: torch.dtype) -> None:
        """Allocate buffer `name`; only while a model is built."""
        self._buffers[name] = torch.empty(rows, width, dtype=dtype, device=self.device)

    def buffer(self, name: str) -> Tensor:
        """Return the whole buffer."""
        return self._buffers[name]

    def view(self, name: str, rows: int, width: int | None = None) -> Tensor:
        """Return the first `rows` rows of a buffer, cut to `width` items if it is wider than needed."""
        return self._buffers[name][:rows, :width]

    def cached(self, key: Hashable, make: Callable[[int], T]) -> ViewCache[T]:
        """Return the cache of views that all callers with an equal key share. make: creates the views for a number of
        rows.
        """
        return self._caches.setdefault(key, ViewCache(make))

    @property
    def nbytes(self) -> int:
        """Bytes reserved, touched or not."""
        return sum(buffer.nbytes for buffer in self._buffers.values())


def by_heads(x: Tensor, num_heads: int) -> Tensor:
    """View x [T, heads * D] as [T, heads, D], with the row stride of x even if T is 1.

    `view` may give a single row any stride, but a call recorded for one row is replayed for more.
    """
    num_tokens, width = x.shape
    size = width // num_heads
    row, item = x.stride()
    return x.as_strided((num_tokens, num_heads, size), (row, size * item, item), x.storage_offset())
