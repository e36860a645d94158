"""The layout of AQLM: a matrix of sums of vectors, each from a codebook of its own.

Never does: read a declaration. Called by: the method.

The matrix [N, K] is cut into blocks of `outputs` rows and `inputs` columns.
codes: int8 or int16 [N / outputs, K / inputs, count], indices modulo 2^bits.
codebooks: floats [count, 2^bits, outputs, inputs].
scales: floats [N / outputs, 1, 1, 1]; block = scale * sum over c of codebooks[c][code[c]].

No kernel adds vectors of codebooks: the matrix is held plain, in the type of the run. The sums are made in float32, which
rounds less than the tool does in the type of its codebooks. A checkpoint of 2 bits a weight takes eight times its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.api.specs import PartPlan, Unsupported
from core_quantization.aqlm.declaration import Codebooks
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run
from core_quantization.declared.stored import FLOATS, Wanted, problem

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

CODES: Final = "codes"
READ: Final = (CODES, "codebooks", "scales")
SHORT_BITS: Final = 8
"""Codes of up to so many bits are stored in a byte."""


@dataclass(frozen=True, slots=True)
class AQLMLayout:
    """The layout of AQLM, of the kind `Layout`. books: sizes of the codebooks. run: settings of all packed layers."""

    books: Codebooks
    run: Run

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        books = self.books
        rows, inputs = part.shape
        if rows % books.outputs or inputs % books.inputs:
            return Unsupported(
                f"module '{part.own_name}' has {rows} outputs and {inputs} inputs, which vectors for {books.outputs} outputs "
                f"and {books.inputs} inputs do not divide; the configuration belongs to another checkpoint"
            )
        code = "I8" if books.bits <= SHORT_BITS else "I16"
        blocks = rows // books.outputs, inputs // books.inputs
        wrong = problem(
            part,
            [
                Wanted(CODES, (code,), [(*blocks, books.count)]),
                Wanted("codebooks", FLOATS, [(books.count, books.size, books.outputs, books.inputs)]),
                Wanted("scales", FLOATS, [(blocks[0], 1, 1, 1)]),
            ],
        )
        if wrong is not None:
            return Unsupported(wrong)
        return self.run.plan_plain(part, READ)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a plain weight, see `Layout`. Raises ValueError for values that are not finite."""
        import torch

        from core_runtime.weights.formats import Dense

        books = self.books
        codebooks, scales = tensors["codebooks"].float(), tensors["scales"].float()
        for name, values in (("codebooks", codebooks), ("scales", scales)):
            if not bool(values.isfinite().all()):
                raise ValueError(f"holds {name} that are not finite; the file is damaged")
        # A negative code is its bits without a sign, as an index needs them.
        indices = tensors[CODES].long() & (books.size - 1)
        blocks = codebooks[0][indices[..., 0]]
        for number in range(1, books.count):
            blocks += codebooks[number][indices[..., number]]
        blocks *= scales
        matrix = blocks.transpose(1, 2).reshape(part.shape)
        return Dense(matrix.to(getattr(torch, self.run.dtype)))
