"""The layouts of FP-Quant: 4-bit floats, or their plain numbers, of weights that are rotated as the inputs will be.

Owns: names and shapes of their tensors. Never does: round. Called by: the manifest. Source: fp_quant 0.3 (arXiv 2509.23202).

qweight: uint8 [N, K / 2], the even input low.
scales: uint8 [N, K / block], exponents (mxfp4) or the bits of e4m3 (nvfp4); rows may be padded to 128, columns to 4.
weight_global_scale: one number, by which the matrix is divided.
dqweight: floats [N, K], in place of these where the tool only simulates the format.
forward_hadamard_matrix: floats [group, group]; each group of inputs is multiplied by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Floats4, Run, planned
from core_quantization.declared.stored import FLOATS, Wanted, one_number, problem
from core_quantization.fp_quant.declaration import FORMS, Rotated

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

VALUES: Final = "qweight"
PLAIN: Final = "dqweight"
ROTATION: Final = "forward_hadamard_matrix"
WHOLE: Final = "weight_global_scale"
UNREAD: Final = ("act_global_scale", "backward_hadamard_matrix")
"""Tensors of inputs that are rounded, and of the training."""
PADDED_ROWS: Final = 128
PADDED_COLUMNS: Final = 4


class RotatedFloats4:
    """The layout of 4-bit floats, of the kind `Layout`. rotated: the declaration. run: settings of all packed layers."""

    def __init__(self, rotated: Rotated, run: Run) -> None:
        self._rotated = rotated
        self._how = Floats4(rotated.form, FORMS[rotated.form])
        self._run = run

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        rows, inputs = part.shape
        size = self._rotated.group_size
        if inputs % size:
            return Unsupported(f"its {inputs} inputs are not a multiple of {size}, which are rotated together")
        rotation = Wanted(ROTATION, FLOATS, [(size, size)])
        if PLAIN in part.tensors:
            wrong = problem(part, [rotation, Wanted(PLAIN, FLOATS, [part.shape])])
            plan = (
                self._run.plan_plain(part, (PLAIN, ROTATION, WHOLE, *UNREAD)) if wrong is None else Unsupported(wrong)
            )
        else:
            across = -(-inputs // self._how.block_size)
            padded = (_padded(rows, PADDED_ROWS), _padded(across, PADDED_COLUMNS))
            wanted = [
                Wanted(VALUES, ("U8",), [(rows, inputs // 2)]),
                Wanted("scales", ("U8",), [(rows, across), padded]),
                Wanted(WHOLE, FLOATS, one_number()),
                rotation,
            ]
            plan = planned(part, wanted, lambda _: self._how, self._run, UNREAD)
        if isinstance(plan, Unsupported):
            return plan
        key = f"{plan.fuse_key}/rotated/{size}"
        return msgspec.structs.replace(plan, fuse_key=key, nbytes=plan.nbytes + 4 * size * size, ordered=True)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight behind its rotation, see `Layout`."""
        import torch

        from core_quantization.declared.canonical import float4_weight
        from core_runtime.weights.formats import Dense
        from core_runtime.weights.input_rotation import MatrixRotation
        from core_runtime.weights.prepared_inputs import PreparedInputs

        rows, inputs = part.shape
        matrix = tensors[ROTATION].float().contiguous()
        if not bool(matrix.isfinite().all()):
            raise ValueError(f"has a '{ROTATION}' that is not finite; the file is damaged")
        rotated = matrix.numpy().tobytes()
        size = self._rotated.group_size
        if PLAIN in tensors:
            plain = tensors[PLAIN].to(getattr(torch, self._run.dtype), copy=True)
            return PreparedInputs(Dense(plain), (MatrixRotation(size, 1.0, rotated),))
        whole = float(tensors[WHOLE].float())
        if not 0 < whole < float("inf"):
            raise ValueError(f"has a '{WHOLE}' of {whole}; expected a positive number")
        scale = tensors["scales"][:rows, : -(-inputs // self._how.block_size)].contiguous()
        if self._how.form == "nvfp4":
            weight = float4_weight(self._how, tensors[VALUES], scale.view(torch.float8_e4m3fn), torch.tensor([whole]))
            return PreparedInputs(weight, (MatrixRotation(size, 1.0, rotated),))
        # Blocks of mxfp4 have no common scale, so that of the matrix divides the inputs.
        weight = float4_weight(self._how, tensors[VALUES], scale)
        return PreparedInputs(weight, (MatrixRotation(size, whole, rotated),))


def fp_quant_layouts(rotated: Rotated, run: Run) -> Callable[[StoredPart], RotatedFloats4 | None]:
    """Return a choice of the one layout. rotated: the declaration. run: settings of all packed layers."""
    layout = RotatedFloats4(rotated, run)
    return lambda part: None if {VALUES, PLAIN}.isdisjoint(part.tensors) else layout


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
