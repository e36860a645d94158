"""Sparse matrices of compressed-tensors: the nonzero numbers, and a bit mask of their places.

Owns: the expansion to the whole matrix. Never does: keep it sparse. Called by: the choice of layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.layout import Layout
from core_quantization.declared.method import PLAIN
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run
from core_quantization.declared.stored import Wanted, problem

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

SPARSE: Final = ("compressed", "bitmask", "shape", "row_offsets")


class SparseLayout:
    """The sparse layout: `compressed`, the numbers of all rows, and `bitmask` uint8 [N, K / 8], the lowest bit first.

    run: settings of all packed layers.
    inner: the layout of the whole matrix; None: it is plain.
    """

    def __init__(self, run: Run, inner: Layout | None) -> None:
        self._run = run
        self._inner = inner

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        rows, inputs = part.shape
        found = problem(part, [Wanted("bitmask", ("U8",), [(rows, -(-inputs // 8))])])
        if found is not None:
            return Unsupported(found)
        numbers = part.tensors.get("compressed")
        if numbers is None:
            return Unsupported(f"module '{part.own_name}' has a bitmask and no tensor 'compressed'")
        if self._inner is None:
            return self._plain(part)
        reads = part.names(*SPARSE)
        plan = self._inner.plan(self._whole(part))
        if isinstance(plan, Unsupported):
            return plan
        others = [name for name in plan.reads if name.rpartition(".")[2] in part.tensors]
        return msgspec.structs.replace(plan, reads=(*reads, *others))

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        import torch

        from core_runtime.weights.formats import Dense

        told = tensors.get("shape")
        if told is not None and told.flatten().tolist() != list(part.shape):
            raise ValueError(f"has a tensor 'shape' of {told.flatten().tolist()}; expected {list(part.shape)}")
        matrix = spread(tensors["compressed"], tensors["bitmask"], part.shape)
        if self._inner is None:
            return Dense(matrix.to(getattr(torch, self._run.dtype)))
        whole = {suffix: tensor for suffix, tensor in tensors.items() if suffix not in SPARSE}
        whole["weight"] = matrix
        return self._inner.pack(self._whole(part), whole)

    def _plain(self, part: StoredPart) -> PartPlan | Unsupported:
        kind = part.tensors["compressed"].dtype
        if kind not in PLAIN:
            return Unsupported(f"module '{part.own_name}' is sparse and of type {kind}, but has no scale")
        return self._run.plan_plain(part, SPARSE)

    def _whole(self, part: StoredPart) -> StoredPart:
        """Return the module as if its matrix were not sparse."""
        numbers = part.tensors["compressed"]
        tensors = {suffix: info for suffix, info in part.tensors.items() if suffix not in SPARSE}
        tensors["weight"] = msgspec.structs.replace(numbers, shape=part.shape)
        return replace(part, tensors=tensors)


def spread(numbers: Tensor, mask: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the whole matrix [N, K]. Raises ValueError when the mask has another number of places.

    numbers: nonzero numbers of all rows, concatenated, in any shape.
    mask: uint8 [N, ceil(K / 8)], the lowest bit first.
    """
    import torch

    from core_runtime.weights.canonical import as_bytes

    rows, inputs = shape
    bits = torch.arange(8, dtype=torch.uint8)
    places = ((mask.unsqueeze(-1) >> bits) & 1).view(rows, -1)[:, :inputs].bool()
    count = int(places.sum())
    if count != numbers.numel():
        raise ValueError(f"has {numbers.numel()} numbers for the {count} places of its bitmask; the file is damaged")
    flat = as_bytes(numbers).flatten()
    whole = torch.zeros(shape, dtype=flat.dtype)
    whole[places] = flat
    return whole.view(numbers.dtype)
