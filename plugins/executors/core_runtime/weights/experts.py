"""The experts of one layer as one weight.

Owns: their order in memory, and how they are assembled one at a time. Never does: know a format.
Called by: the loading (it fills a stack), kernels that run all experts together (they take it whole).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core_runtime.weights.canonical import CanonicalWeight, as_bytes


@dataclass(frozen=True, slots=True)
class Experts:
    """E matrices [N, K] of one format.

    weight: all matrices concatenated along N: [E * N, K].
    count: E.
    """

    weight: CanonicalWeight
    count: int

    @property
    def name(self) -> str:
        """The format of each expert."""
        return self.weight.name

    @property
    def shape(self) -> tuple[int, int, int]:
        """Logical shape (E, N, K)."""
        rows, inputs = self.weight.shape
        return self.count, rows // self.count, inputs

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.weight.nbytes

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that are tensors, each as a view with the experts as its first axis: [E, N, ...]."""
        count, rows, _ = self.shape
        found = {}
        for name, tensor in self.weight.tensors().items():
            found[name] = tensor.unflatten(0, (count, rows))
        return found

    def expert(self, index: int) -> CanonicalWeight:
        """Return one expert's matrix, as a view."""
        rows = self.shape[1]
        start = index * rows
        return self.weight.rows(slice(start, start + rows))

    def to(self, device: torch.device) -> Experts:
        """Return a copy on another device."""
        return replace(self, weight=self.weight.to(device))


class ExpertsStack:
    """Collects the experts of a layer, in any order, one part of an expert at a time.

    count: number of experts.
    rows: rows of one expert, all its parts concatenated.
    """

    def __init__(self, count: int, rows: int) -> None:
        self._count = count
        self._rows = rows
        self._whole: CanonicalWeight | None = None

    def put(self, expert: int, first_row: int, part: CanonicalWeight) -> None:
        """Copy a part of an expert to its place. Raises ValueError if its format differs from that of the others."""
        if self._whole is None:
            self._whole = self._empty_like(part)
        same_type = type(part) is type(self._whole)
        if not same_type or part.attributes() != self._whole.attributes():
            raise ValueError(f"an expert of format '{part.name}' cannot join others of format '{self._whole.name}'")
        start = expert * self._rows + first_row
        stop = start + part.shape[0]
        held = self._whole.tensors()
        for name, tensor in part.tensors().items():
            place = as_bytes(held[name])
            place[start:stop] = as_bytes(tensor)

    def take(self) -> Experts:
        """Return all experts and empty the stack."""
        assert self._whole is not None, "no expert was put in"
        whole = self._whole
        self._whole = None
        return Experts(whole, self._count)

    def _empty_like(self, part: CanonicalWeight) -> CanonicalWeight:
        rows = self._count * self._rows
        room = {}
        for name, tensor in part.tensors().items():
            room[name] = tensor.new_empty(rows, *tensor.shape[1:])
        return replace(part, **room)
