"""Layouts of 8-bit and 4-bit floats with the scales of a declaration.

Owns: names and shapes of their tensors. Never does: round. Called by: choices of layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Floats4, Floats8, Run, planned
from core_quantization.declared.shares import Shares
from core_quantization.declared.stored import FLOATS, Wanted, one_number

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

FORMS: Final = {"F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2"}
EXPONENTS: Final = ("U8", "F8_E8M0")
"""Types of scales that are powers of two."""
UNREAD: Final = ("input_scale", "input_zero_point", "input_global_scale", "weight_zero_point", "weight_shape")
"""Tensors that are not used: those of inputs are used by `RoundsInputs` alone, floats have no zero points, and the model knows
their shape.
"""


class DeclaredFloat8:
    """The layout `weight` [N, K] in 8-bit floats and `weight_scale`.

    shares: what shares a scale; scales of groups may be powers of two (mxfp8).
    run: settings of all packed layers.
    """

    def __init__(self, shares: Shares, run: Run) -> None:
        self._shares = shares
        self._run = run

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        types = (*FLOATS, *EXPONENTS) if self._shares.by == "group" else FLOATS
        own = [
            Wanted("weight", tuple(FORMS), [part.shape]),
            Wanted("weight_scale", types, self._shares.shapes(part.shape)),
        ]
        return planned(part, own, self._how, self._run, UNREAD)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        import torch

        from core_quantization.declared.canonical import float8_weight, from_exponents

        scale = tensors["weight_scale"]
        if part.tensors["weight_scale"].dtype in EXPONENTS:
            scale = from_exponents(scale.view(torch.uint8))
        return float8_weight(self._how(part), tensors["weight"], scale, self._shares.block)

    def _how(self, part: StoredPart) -> Floats8:
        form = FORMS[part.tensors["weight"].dtype]
        return Floats8(form, self._shares.width(part.shape[1]))


class DeclaredFloat4:
    """The layout of 4-bit floats uint8 [N, K / 2], the even input low, with narrow scales: mxfp4 or nvfp4, by the type
    of the scales.

    values: suffix of the tensor.
    block_size: inputs that share a scale.
    run: settings of all packed layers.
    """

    def __init__(self, values: str, block_size: int, run: Run) -> None:
        self._values = values
        self._block_size = block_size
        self._run = run

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        rows, inputs = part.shape
        how = self._how(part)
        types = EXPONENTS if how.form == "mxfp4" else ("F8_E4M3",)
        own = [
            Wanted(self._values, ("U8",), [(rows, inputs // 2)]),
            Wanted("weight_scale", types, [(rows, -(-inputs // how.block_size))]),
        ]
        if how.form == "nvfp4":
            own.append(Wanted("weight_global_scale", FLOATS, one_number()))
        return planned(part, own, self._how, self._run, UNREAD)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        import torch

        from core_quantization.declared.canonical import float4_weight

        how = self._how(part)
        scale = tensors["weight_scale"]
        if how.form == "mxfp4":
            scale = scale.view(torch.uint8)
        return float4_weight(how, tensors[self._values], scale, tensors.get("weight_global_scale"))

    def _how(self, part: StoredPart) -> Floats4:
        scale = part.tensors.get("weight_scale")
        powers = scale is not None and scale.dtype in EXPONENTS
        return Floats4("mxfp4" if powers else "nvfp4", self._block_size)
