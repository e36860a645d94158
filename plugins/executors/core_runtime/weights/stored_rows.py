"""Rows of a matrix that lie as in a file, for kernels that read them from there.

Owns: where each row lies, and what its bytes mean. Never does: read a row, except for `canonical`.
Called by: the packing and quantization methods (they make these), kernel providers with `RowLayouts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from core.api.errors import CheckpointError
from core_runtime.weights.canonical import CanonicalWeight
from core_runtime.weights.dense import Dense

Translate = Callable[[Tensor], CanonicalWeight]
"""Function from rows, uint8 [N, bytes a row], to a weight."""


@dataclass(frozen=True, slots=True)
class StoredRows(CanonicalWeight):
    """A weight whose rows lie anywhere in memory, in the layout of a file.

    layout: name of the layout: a dtype of plain numbers such as `bfloat16`, or a block type of GGUF such as `Q4_K`.
    like: a row of the weight in its canonical format.
    places: address of each row, int64 [N].
    memory: tensors that contain the rows, uint8 [n, bytes a row], with the names of their tensors in the checkpoint.
    translate: canonical form of such a tensor.
    """

    layout: str
    like: CanonicalWeight
    places: Tensor
    memory: tuple[tuple[str, Tensor], ...]
    translate: Translate

    @property
    def name(self) -> str:
        """Name of the canonical format."""
        return self.like.name

    @property
    def shape(self) -> tuple[int, int]:
        """Logical shape (N, K)."""
        return len(self.places), self.like.shape[1]

    def attributes(self) -> dict[str, Any]:
        """Return the fields that are equal for all rows, wherever they lie."""
        return {"layout": self.layout, **self.like.attributes()}

    def joined(self, others: Sequence[Self]) -> Self:
        """Return one weight of the rows of several, none of which is copied."""
        places = torch.cat([self.places, *[other.places for other in others]])
        memory = self.memory
        for other in others:
            memory += other.memory
        return replace(self, places=places, memory=memory)

    def canonical(self) -> CanonicalWeight:
        """Return a copy in the canonical format. Raises CheckpointError for scales that are not finite."""
        raw = torch.empty((len(self.places), self.memory[0][1].shape[1]), dtype=torch.uint8)
        for name, tensor in self.memory:
            inside = (self.places >= tensor.data_ptr()) & (self.places < tensor.data_ptr() + tensor.nbytes)
            raw[inside] = tensor[(self.places[inside] - tensor.data_ptr()) // tensor.shape[1]]
            problem = self.translate(raw[inside]).problem()
            if problem is not None:
                raise CheckpointError(not_finite(name, problem))
        return self.translate(raw)

    def dequantize(self) -> Tensor:
        """Return W as float32 [N, K]."""
        return self.canonical().dequantize()

    def problem(self) -> str | None:
        """Return None: kernels check the rows that they read, and `canonical` checks those that it copies."""
        return None


def stored_rows(name: str, layout: str, rows: Tensor, translate: Translate) -> StoredRows:
    """Return all rows of a tensor [N, ...], whose memory must not change as long as the weight is used."""
    raw = rows.contiguous().view(torch.uint8)
    places = torch.arange(raw.shape[0], dtype=torch.int64) * raw.shape[1] + raw.data_ptr()
    return StoredRows(layout, translate(raw[:1]), places, ((name, raw),), translate)


def plain_rows(name: str, matrix: Tensor) -> StoredRows:
    """Return the rows of a plain matrix."""
    dtype = matrix.dtype
    return stored_rows(name, str(dtype).removeprefix("torch."), matrix, lambda raw: Dense(raw.view(dtype)))


def not_finite(name: str, problem: str) -> str:
    """Return the message for a tensor of a checkpoint with scales that are not finite."""
    return f"Tensor '{name}' holds scales that are not finite ({problem}); the file is damaged, download it again."
