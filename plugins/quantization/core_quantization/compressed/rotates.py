"""The layouts of matrices with transforms beside them, and of plain matrices that have some.

Owns: what transforms add to a plan, and the order of rotating and rounding. Never does: rotate. Called by: the choice
of layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from core.api.specs import PartPlan, Unsupported
from core_quantization.compressed.transforms import Transform
from core_quantization.declared.layout import Layout
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run
from core_quantization.declared.stored import Wanted, problem

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight
    from core_runtime.weights.prepared_inputs import InputStep


class Rotates:
    """A layout with transforms around it, of the kind `Layout`.

    inner: layout of the matrix, and of the rounding of its inputs. transforms: of its inputs and outputs, in their order.
    """

    def __init__(self, inner: Layout, transforms: Sequence[Transform]) -> None:
        self._inner = inner
        self._transforms = tuple(transforms)

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        wanted: list[Wanted] = []
        nbytes = 0
        for transform in self._transforms:
            wrong = transform.unserved(part)
            if wrong is not None:
                return Unsupported(wrong)
            wanted += transform.wanted(part)
            nbytes += transform.nbytes(part)
        named = {one.suffix for one in wanted}
        shared = {info.name: info for infos in part.elsewhere.values() for info in infos if info.name in named}
        wrong = problem(replace(part, tensors={**part.tensors, **shared}), wanted)
        if wrong is not None:
            return Unsupported(wrong)
        plan = self._inner.plan(part)
        if isinstance(plan, Unsupported):
            return plan
        names = "+".join(transform.prefix for transform in self._transforms)
        reads = dict.fromkeys((*plan.reads, *part.names(*(tensor.suffix for tensor in wanted)), *shared))
        return msgspec.structs.replace(
            plan,
            reads=tuple(reads),
            fuse_key=f"{plan.fuse_key}/transforms/{names}",
            nbytes=plan.nbytes + nbytes,
            ordered=True,
        )

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight between its transforms, see `Layout`."""
        from core_runtime.weights.prepared_inputs import PreparedInputs

        weight = self._inner.pack(part, tensors)
        before: list[InputStep] = []
        behind: list[InputStep] = []
        for transform in self._transforms:
            (before if transform.location == "input" else behind).append(transform.step(part, tensors))
        if isinstance(weight, PreparedInputs):  # inputs are rotated, and then rounded
            before += weight.steps
            weight = weight.weight
        return PreparedInputs(weight, tuple(before), tuple(behind))


class PlainMatrix:
    """The layout of a plain matrix, for one that has transforms, of the kind `Layout`. run: settings of all layers."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        return self._run.plan_plain(part, ("weight",))

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        import torch

        from core_runtime.weights.formats import Dense

        return Dense(tensors["weight"].to(getattr(torch, self._run.dtype), copy=True))
