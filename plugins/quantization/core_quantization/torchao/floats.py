"""Layouts of torchao's narrow floats.

Never does: read a header. Called by: the method.

Float8Tensor: qdata float8 [N, K]; scale floats, one, one a row, a group or a block.
MXTensor: qdata float8 [N, K], or uint8 [N, K / 2] of 4-bit floats, the even input low; scale float8_e8m0fnu [N, K / 32].
NVFP4Tensor: qdata uint8 [N, K / 2]; scale float8_e4m3fn [N, K / 16]; per_tensor_scale, one float, optional.

Scales of the last two may be swizzled: they are cut into tiles of 128 rows and 4 columns, which are stored one after
another. In a tile rows r, r + 32, r + 64 and r + 96 lie side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Floats4, Floats8, Run, planned
from core_quantization.declared.shares import Shares
from core_quantization.declared.stored import FLOATS, Wanted, one_number
from core_quantization.torchao.described import PREFIX, Described

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

QDATA: Final = f"{PREFIX}qdata"
SCALE: Final = f"{PREFIX}scale"
WHOLE: Final = f"{PREFIX}per_tensor_scale"
UNREAD: Final = (f"{PREFIX}act_per_tensor_scale",)
FORMS: Final = {"F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2"}
WORDS: Final = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "U8": "float4_e2m1fn_x2"}
"""Type of the tensor → torchao's name for its elements."""
TILE_ROWS: Final = 128
TILE_COLUMNS: Final = 4
TILE_STEP: Final = 32


def scaled_floats(found: Described, part: StoredPart, run: Run) -> ScaledFloats | Unsupported:
    """Return the layout of Float8Tensor."""
    shares = found.shares(part.shape)
    if shares is None:
        return Unsupported(
            f"'{part.own_name}' has block_size {found.attributes.get('block_size')}; expected two numbers"
        )
    return ScaledFloats(run, shares)


def block_floats(found: Described, part: StoredPart, run: Run) -> BlockFloats | Unsupported:
    """Return the layout of MXTensor and NVFP4Tensor."""
    size = found.attributes.get("block_size")
    if type(size) is not int or size < 1:
        return Unsupported(f"'{part.own_name}' has block_size {size}; expected a number of inputs")
    info = part.tensors.get(QDATA)
    kind = found.attributes.get("elem_dtype", WORDS["U8"])
    if info is not None and WORDS.get(info.dtype) != kind:
        return Unsupported(
            f"'{part.own_name}' has elements of type {kind} in a tensor of type {info.dtype}; expected float8_e4m3fn or "
            "float8_e5m2 in one of that type, or float4_e2m1fn_x2 in U8"
        )
    return BlockFloats(run, size, found.attributes.get("is_swizzled_scales") is True, found.kind == "NVFP4Tensor")


@dataclass(frozen=True, slots=True)
class ScaledFloats:
    """The layout of 8-bit floats, of the kind `Layout`. run: settings of all packed layers. shares: what shares a
    scale.
    """

    run: Run
    shares: Shares

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        scales = self.shares.shapes(part.shape)
        wanted = [Wanted(QDATA, tuple(FORMS), [part.shape]), Wanted(SCALE, FLOATS, scales)]
        return planned(part, wanted, self._how, self.run)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        from core_quantization.declared.canonical import float8_weight

        return float8_weight(self._how(part), tensors[QDATA], tensors[SCALE], self.shares.block)

    def _how(self, part: StoredPart) -> Floats8:
        return Floats8(FORMS[part.tensors[QDATA].dtype], self.shares.width(part.shape[1]))


@dataclass(frozen=True, slots=True)
class BlockFloats:
    """The layout of 8-bit or 4-bit floats with a narrow scale for a block of inputs, of the kind `Layout`.

    run: settings of all packed layers.
    block_size: inputs that share a scale.
    swizzled: whether the scales are stored in tiles.
    nv: whether scales are 8-bit floats (nvfp4) rather than powers of two.
    """

    run: Run
    block_size: int
    swizzled: bool
    nv: bool

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        rows, inputs = part.shape
        values = Wanted(QDATA, ("U8",), [(rows, inputs // 2)])
        if QDATA in part.tensors and part.tensors[QDATA].dtype in FORMS:
            values = Wanted(QDATA, tuple(FORMS), [part.shape])
        types = ("F8_E4M3",) if self.nv else ("F8_E8M0", "U8")
        wanted = [values, Wanted(SCALE, types, [self._scales(part)])]
        if WHOLE in part.tensors:
            wanted.append(Wanted(WHOLE, FLOATS, one_number()))
        return planned(part, wanted, self._how, self.run, UNREAD)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        import torch

        from core_quantization.declared.canonical import float4_weight, float8_weight, from_exponents

        rows, inputs = part.shape
        how = self._how(part)
        scale = tensors[SCALE].view(torch.uint8)
        if self.swizzled:
            scale = unswizzled(scale, (rows, -(-inputs // self.block_size)))
        if isinstance(how, Floats8):
            return float8_weight(how, tensors[QDATA], from_exponents(scale))
        if not self.nv:
            return float4_weight(how, tensors[QDATA], scale)
        factor = tensors.get(WHOLE, torch.ones(1))
        return float4_weight(how, tensors[QDATA], scale.view(torch.float8_e4m3fn), factor=factor)

    def _how(self, part: StoredPart) -> Floats4 | Floats8:
        form = FORMS.get(part.tensors[QDATA].dtype)
        if form is not None:
            return Floats8(form, self.block_size)
        return Floats4("nvfp4" if self.nv else "mxfp4", self.block_size)

    def _scales(self, part: StoredPart) -> tuple[int, int]:
        """Return the shape of the scales."""
        rows, inputs = part.shape
        columns = -(-inputs // self.block_size)
        if not self.swizzled:
            return rows, columns
        return -(-rows // TILE_ROWS) * TILE_STEP, -(-columns // TILE_COLUMNS) * (TILE_ROWS // TILE_STEP) * TILE_COLUMNS


def unswizzled(scale: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return scales in rows. scale: scales in tiles. shape: shape of the scales, without the padding of the last
    tiles.
    """
    rows, columns = shape
    down = -(-rows // TILE_ROWS)
    across = -(-columns // TILE_COLUMNS)
    tiles = scale.reshape(down, across, TILE_STEP, TILE_ROWS // TILE_STEP, TILE_COLUMNS)
    whole = tiles.permute(0, 3, 2, 1, 4).reshape(down * TILE_ROWS, across * TILE_COLUMNS)
    return whole[:rows, :columns].contiguous()
