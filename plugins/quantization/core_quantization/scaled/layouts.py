"""Layouts of 8-bit floats and integers with a scale of the tensor, a row or a block, and of 4-bit floats in blocks.

Never does: read a declaration. Called by: methods whose checkpoints store matrices this way.

fp8:   `weight` float8 [N, K] and `weight_scale` (one, one a row, or one a block of rows and columns, [R, C] or [R, 1, C, 1]),
       or its other name `weight_scale_inv`, which multiplies as well; floats, or powers of two as bytes.
int8:  `weight` int8 [N, K] and `weight_scale` of the same shapes but for blocks.
mxfp4: `weight_blocks` uint8 [N, K / 32, 16] and `weight_scales` uint8 [N, K / 32], powers of two; or `weight_packed` uint8
       [N, K / 2] and `weight_scale`. The low nibble is the even input.
nvfp4: `weight` or `weight_packed` uint8 [N, K / 2], `weight_scale` float8 [N, K / 16] or [N, K / 32], and a scale of the
       tensor: one that multiplies, `weight_scale_2`, or one that divides, `weight_global_scale`.

`input_scale`, a calibrated scale of inputs, is planned as read; `RoundsInputs` uses it where inputs are rounded as declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.floats import EXPONENTS, FORMS
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Floats4, Floats8, Integers, Run, planned
from core_quantization.declared.stored import FLOATS, Wanted, a_row, one_number

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

SCALES: Final = ("weight_scale", "weight_scale_inv")
UNREAD: Final = ("input_scale", "input_global_scale", "activation_scale", "activation_scale_ub", "input_scale_ub")
MX_BLOCK: Final = 32
NV_BLOCK: Final = 16
WIDE_NV_BLOCK: Final = 32
"""Block size of nvfp4 for 8-bit inputs."""


class Float8:
    """The layout of 8-bit floats.

    block: (rows, columns) that share a scale, where there is neither one scale nor one a row.
    run: settings of all packed layers.
    """

    def __init__(self, block: tuple[int, int] | None, run: Run) -> None:
        self._block = block
        self._run = run

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        n, k = part.shape
        shapes = [*one_number(), *a_row(n)]
        if self._block is not None:
            rows, columns = self._block
            down = -(-n // rows)
            across = -(-k // columns)
            shapes += [(down, across), (down, 1, across, 1)]
        scale = _scale_of(part)
        types = (*FLOATS, *EXPONENTS)
        wanted = [Wanted("weight", tuple(FORMS), [part.shape]), Wanted(scale, types, shapes)]
        return planned(part, wanted, self._how, self._run, UNREAD)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        import torch

        from core_quantization.declared.canonical import float8_weight, from_exponents

        scale = tensors[_scale_of(part)]
        if part.tensors[_scale_of(part)].dtype in EXPONENTS:
            scale = from_exponents(scale.view(torch.uint8))
        if not self._is_blocked(part):
            return float8_weight(self._how(part), tensors["weight"], scale)
        of_blocks = scale.squeeze((1, 3)) if scale.dim() == 4 else scale
        return float8_weight(self._how(part), tensors["weight"], of_blocks, self._block)

    def _how(self, part: StoredPart) -> Floats8:
        size = part.shape[1]
        if self._block is not None and self._is_blocked(part):
            size = self._block[1]
        return Floats8(FORMS[part.tensors["weight"].dtype], size)

    def _is_blocked(self, part: StoredPart) -> bool:
        shape = tuple(part.tensors[_scale_of(part)].shape)
        return shape not in [*one_number(), *a_row(part.shape[0])]


class Int8:
    """The layout of signed bytes with a scale of the tensor or of each row. run: settings of all packed layers."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        shapes = [*one_number(), *a_row(part.shape[0])]
        scale = _scale_of(part)
        wanted = [Wanted("weight", ("I8",), [part.shape]), Wanted(scale, FLOATS, shapes)]
        return planned(part, wanted, self._how, self._run, UNREAD)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        import torch

        from core_quantization.declared.canonical import SIGN, integer_weight

        values = tensors["weight"].view(torch.uint8) ^ SIGN
        return integer_weight(self._how(part), values, tensors[_scale_of(part)])

    def _how(self, part: StoredPart) -> Integers:
        inputs = part.shape[1]
        scale = part.tensors[_scale_of(part)].dtype
        return Integers(8, inputs, zeros=False, channel=True, ordered=False, scale=scale)


class Float4:
    """The layout of 4-bit floats in blocks. form: `mxfp4` or `nvfp4`. run: settings of all packed layers."""

    def __init__(self, form: str, run: Run) -> None:
        self._form = form
        self._run = run

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        n, k = part.shape
        how = self._how(part)
        size = how.block_size
        values, scales = _names(part)
        packed = (n, -(-k // size), size // 2) if values == "weight_blocks" else (n, k // 2)
        types = EXPONENTS if how.form == "mxfp4" else tuple(FORMS)
        wanted = [Wanted(values, ("U8",), [packed]), Wanted(scales, types, [(n, -(-k // size))])]
        for whole in ("weight_scale_2", "weight_global_scale"):
            if whole in part.tensors:
                wanted.append(Wanted(whole, FLOATS, one_number()))
        return planned(part, wanted, self._how, self._run, UNREAD)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        import torch

        from core_quantization.declared.canonical import float4_weight

        n, k = part.shape
        values, scales = _names(part)
        pairs = tensors[values].reshape(n, k // 2)
        scale = tensors[scales]
        how = self._how(part)
        if how.form == "mxfp4":
            return float4_weight(how, pairs, scale.view(torch.uint8))
        divisor = tensors.get("weight_global_scale")
        factor = tensors.get("weight_scale_2")
        if divisor is None and factor is None:
            factor = torch.ones(1)
        return float4_weight(how, pairs, scale, divisor, factor)

    def _how(self, part: StoredPart) -> Floats4:
        if self._form == "mxfp4":
            return Floats4(self._form, MX_BLOCK)
        n, k = part.shape
        scale = part.tensors.get(_names(part)[1])
        wide = scale is not None and tuple(scale.shape) == (n, k // WIDE_NV_BLOCK)
        return Floats4(self._form, WIDE_NV_BLOCK if wide else NV_BLOCK)


def _scale_of(part: StoredPart) -> str:
    """Return the suffix of the part's scales, or the usual one where it has none."""
    for name in SCALES:
        if name in part.tensors:
            return name
    return SCALES[0]


def _names(part: StoredPart) -> tuple[str, str]:
    """Return the suffixes of the part's pairs and of their scales."""
    if "weight_blocks" in part.tensors:
        return "weight_blocks", "weight_scales"
    packed = "weight_packed" if "weight_packed" in part.tensors else "weight"
    return packed, "weight_scale"
