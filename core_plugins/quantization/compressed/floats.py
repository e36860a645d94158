"""Floats of compressed-tensors: 8 bits in a type of their own, 4 bits in pairs.

Owns: names and shapes of their tensors. Never does: round. Called by: the choice of layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from core.api.specs import PartPlan, Unsupported
from core_plugins.quantization.compressed.declaration import Numbers
from core_plugins.quantization.compressed.integers import INPUTS
from core_plugins.quantization.declared.held import Floats4, Floats8, Run
from core_plugins.quantization.declared.part import StoredPart
from core_plugins.quantization.declared.stored import FLOATS, Wanted, a_row, one_number, problem

if TYPE_CHECKING:
    from torch import Tensor

    from core.weights.formats import CanonicalWeight

FORMS: Final = {"F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2"}
EXPONENTS: Final = ("U8", "F8_E8M0")
"""Types of scales that are powers of two."""
UNREAD: Final = ("weight_zero_point", "weight_shape", *INPUTS)


class Float8:
    """`weight` [N, K] in 8-bit floats, with a scale a tensor, row, group of inputs or block.

    numbers: the scheme. run: what the user wants.
    """

    def __init__(self, numbers: Numbers, run: Run) -> None:
        self._numbers = numbers
        self._run = run

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """See `Layout`."""
        types = (*FLOATS, *EXPONENTS) if self._numbers.strategy == "group" else FLOATS
        own = [
            Wanted("weight", tuple(FORMS), [part.shape]),
            Wanted("weight_scale", types, self._scales(part)),
        ]
        found = problem(part, own)
        if found is not None:
            return Unsupported(found)
        return self._how(part).plan(part, self._run, ("weight", "weight_scale", *UNREAD))

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """See `Layout`."""
        import torch

        from core_plugins.quantization.declared.canonical import float8_weight, from_exponents

        scale = tensors["weight_scale"]
        if part.tensors["weight_scale"].dtype in EXPONENTS:
            scale = from_exponents(scale.view(torch.uint8))
        return float8_weight(self._how(part), tensors["weight"], scale, self._numbers.block)

    def _how(self, part: StoredPart) -> Floats8:
        inputs = part.shape[1]
        size = self._numbers.group_size or inputs
        if self._numbers.block is not None:
            size = self._numbers.block[1]
        return Floats8(FORMS[part.tensors["weight"].dtype], size)

    def _scales(self, part: StoredPart) -> list[tuple[int, ...]]:
        """Shapes that the scales may have."""
        rows, inputs = part.shape
        if self._numbers.block is not None:
            block_rows, block_inputs = self._numbers.block
            return [(-(-rows // block_rows), -(-inputs // block_inputs))]
        if self._numbers.strategy == "tensor":
            return one_number()
        if self._numbers.strategy == "channel":
            return a_row(rows)
        return [(rows, -(-inputs // self._numbers.group_size))]


class Float4:
    """`weight_packed` uint8 [N, K / 2], the even input low, with narrow scales: mxfp4 or nvfp4, as their type says.

    numbers: the scheme. run: what the user wants.
    """

    def __init__(self, numbers: Numbers, run: Run) -> None:
        self._numbers = numbers
        self._run = run

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """See `Layout`."""
        rows, inputs = part.shape
        how = self._how(part)
        types = EXPONENTS if how.form == "mxfp4" else ("F8_E4M3",)
        own = [
            Wanted("weight_packed", ("U8",), [(rows, inputs // 2)]),
            Wanted("weight_scale", types, [(rows, -(-inputs // how.block_size))]),
        ]
        if how.form == "nvfp4":
            own.append(Wanted("weight_global_scale", FLOATS, one_number()))
        found = problem(part, own)
        if found is not None:
            return Unsupported(found)
        reads = tuple(wanted.suffix for wanted in own)
        return how.plan(part, self._run, (*reads, *UNREAD))

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """See `Layout`."""
        import torch

        from core_plugins.quantization.declared.canonical import float4_weight

        how = self._how(part)
        scale = tensors["weight_scale"]
        if how.form == "mxfp4":
            scale = scale.view(torch.uint8)
        return float4_weight(how, tensors["weight_packed"], scale, tensors.get("weight_global_scale"))

    def _how(self, part: StoredPart) -> Floats4:
        scale = part.tensors.get("weight_scale")
        powers = scale is not None and scale.dtype in EXPONENTS
        return Floats4("mxfp4" if powers else "nvfp4", self._numbers.group_size)
