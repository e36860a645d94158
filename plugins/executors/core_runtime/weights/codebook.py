"""Weights of 4-bit codes that index a table of sixteen numbers, with one scale per block.

Owns: the tables and the meaning of the scales. Never does: quantize. Called by: quantization methods, kernels.

Sources: nf4, Dettmers et al. 2023, arXiv 2305.14314, appendix E; fp4, the table of bitsandbytes; mxfp4, OCP Microscaling
Formats 1.0; nvfp4, its e2m1 elements with one e4m3 scale for 16 elements and a float32 scale above them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from core_runtime.weights.canonical import CanonicalWeight, take_columns, whole_groups
from core_runtime.weights.int_groups import unpack_nibbles

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_FP4 = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
_NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
_MINUS_FP4 = tuple(-code for code in _FP4)
CODES = {
    "nf4": _NF4,
    "fp4": _FP4 + _MINUS_FP4,
    "mxfp4": E2M1,
    "nvfp4": E2M1,
}
SCALES: dict[str, tuple[torch.dtype, ...]] = {
    "nf4": (torch.float32, torch.float16),
    "fp4": (torch.float32, torch.float16),
    "mxfp4": (torch.uint8,),
    "nvfp4": (torch.float8_e4m3fn,),
}


@dataclass(frozen=True, slots=True)
class Codebook(CanonicalWeight):
    """W[n, k] = CODES[kind][code[n, k]] * scale[n, k // block_size] * row_scale[n].

    kind: `nf4`, `fp4`, `mxfp4` or `nvfp4`: the format's name.
    block_size: inputs per block; divides K, and is a multiple of 16.
    values: uint8 [N, K // 2]; the low nibble is the even k.
    scale: [N, K // block_size]; nf4, fp4: float32 or float16; mxfp4: uint8, 2^(byte - 127) (e8m0, 255 is not a number);
        nvfp4: float8_e4m3fn.
    row_scale: float32 [N, 1] or None; a scale of the whole tensor is repeated for each row.
    """

    kind: str
    block_size: int
    values: Tensor
    scale: Tensor
    row_scale: Tensor | None = None

    def __post_init__(self) -> None:
        """Validate the fields. Raises ValueError for other types or shapes."""
        if self.kind not in CODES:
            raise ValueError(f"no 4-bit codebook is called '{self.kind}'; there are {', '.join(CODES)}")
        if self.values.dtype is not torch.uint8 or self.scale.dtype not in SCALES[self.kind]:
            wanted = " or ".join(str(dtype) for dtype in SCALES[self.kind])
            raise ValueError(
                f"{self.kind} got values {self.values.dtype} and scale {self.scale.dtype}; it needs torch.uint8 and "
                f"{wanted}"
            )
        n, k = self.shape
        blocks_fit = self.block_size >= 1 and k % self.block_size == 0
        if not blocks_fit or self.scale.shape != (n, k // self.block_size):
            raise ValueError(
                f"{self.kind} got scale {tuple(self.scale.shape)} for a weight of shape ({n}, {k}) in blocks of "
                f"{self.block_size}; blocks must divide the inputs, and each needs a scale"
            )
        row_scale = self.row_scale
        if row_scale is None:
            return
        if row_scale.dtype is not torch.float32 or row_scale.shape != (n, 1):
            raise ValueError(
                f"{self.kind} got row_scale {row_scale.dtype} {tuple(row_scale.shape)}; it needs float32 ({n}, 1)"
            )

    @property
    def name(self) -> str:
        """The kind, which is the format's name."""
        return self.kind

    @property
    def shape(self) -> tuple[int, int]:
        """Logical shape (N, K)."""
        return self.values.shape[0], self.values.shape[1] * 2

    @property
    def group_size(self) -> int:
        """Number of inputs that share a scale."""
        return self.block_size

    @property
    def codes(self) -> tuple[float, ...]:
        """The table of sixteen numbers."""
        return CODES[self.kind]

    def columns(self, index: Tensor | slice) -> Self:
        """Return whole blocks of columns as a weight."""
        columns, groups = whole_groups(index, self.shape[1], self.block_size, self.name)
        values = take_columns(self.values, columns[::2] // 2)  # a block is whole bytes
        return replace(self, values=values, scale=take_columns(self.scale, groups))

    def wide_scale(self) -> Tensor:
        """Return the scales of the blocks as float32."""
        if self.kind == "mxfp4":
            return torch.exp2(self.scale.float() - 127)
        return self.scale.float()

    def dequantize(self) -> Tensor:
        """Return W as float32 [N, K]."""
        n, k = self.shape
        table = torch.tensor(self.codes, dtype=torch.float32, device=self.values.device)
        indices = unpack_nibbles(self.values).int()
        blocks = table[indices].view(n, -1, self.block_size)
        scaled = blocks * self.wide_scale().unsqueeze(-1)
        w = scaled.view(n, k)
        if self.row_scale is not None:
            w = w * self.row_scale
        return w

    def problem(self) -> str | None:
        """Return an error message for scales that are not finite; a scale byte of mxfp4 may also stand for NaN."""
        if self.kind == "mxfp4" and bool((self.scale == 255).any()):
            return f"the scale of an mxfp4 weight of shape {self.shape} holds values that are not finite"
        return CanonicalWeight.problem(self)
