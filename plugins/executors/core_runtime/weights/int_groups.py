"""Groups of 4- or 8-bit integers: GPTQ, AWQ, HQQ, GGUF blocks, compressed-tensors. Called by: quantization methods, kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

import torch
from torch import Tensor

from core_runtime.weights.canonical import CanonicalWeight, take_columns, whole_groups
from core_runtime.weights.input_order import InputOrder

SCALE_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32)
FEATURES: Final = frozenset({"zero_points", "bfloat16_scales", "input_order"})
"""Features that a kernel must declare to receive such a weight; see `IntGroups.features`."""
CANNOT_CUT: Final = (
    "a weight of format '{name}' with an order of inputs (act-order) cannot be cut along its inputs; do not divide the "
    "layer"
)


def unpack_nibbles(values: Tensor) -> Tensor:
    """Unpack uint8 [N, K // 2] to integers 0..15, one per byte: [N, K]; the low nibble is the even k."""
    pairs = torch.stack((values & 15, values >> 4), dim=-1)
    return pairs.reshape(values.shape[0], -1)


def integer_features(scale: Tensor, zeros: Tensor | None, order: InputOrder | None) -> frozenset[str]:
    """Return those of FEATURES that a weight with these parts needs."""
    found = set()
    if zeros is not None:
        found.add("zero_points")
    if scale.dtype is torch.bfloat16:
        found.add("bfloat16_scales")
    if order is not None:
        found.add("input_order")
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class IntGroups(CanonicalWeight):
    """Unsigned 4- or 8-bit integers in groups along K, with a scale and a zero point or a minimum a group.

    W[n, order[k]] = scale[n, k // group_size] * (value[n, k] - zero) + minimum[n, k // group_size]

    bits: bits of an integer, 4 or 8.
    group_size: inputs per group; divides K, and is a multiple of 16.
    values: uint8, [N, K] for 8 bits, [N, K // 2] for 4 bits (the low nibble is the even k).
    scale: float16, bfloat16 or float32, [N, K // group_size].
    minimum: None, or the dtype and shape of `scale`.
    zero: one zero point for the whole weight (128 for signed 8-bit values, 8 for signed 4-bit, 0 with zeros); allowed
        together with a minimum.
    zeros: a zero point per group instead of `zero`, uint8 in the shape of `scale`, or None.
    order: stored order of the inputs, for checkpoints with act-order, or None: the columns lie in order.
    """

    bits: int
    group_size: int
    values: Tensor
    scale: Tensor
    minimum: Tensor | None = None
    zero: int = 0
    zeros: Tensor | None = None
    order: InputOrder | None = None

    def __post_init__(self) -> None:
        """Validate optional fields. Raises ValueError for other types or shapes, or for several zero points at once."""
        form = f"an {self.name} weight of shape {self.shape} in groups of {self.group_size}"
        if self.scale.dtype not in SCALE_DTYPES:
            wanted = ", ".join(str(dtype) for dtype in SCALE_DTYPES)
            raise ValueError(f"{form} got scale {self.scale.dtype}; it needs one of {wanted}")
        zeros = self.zeros
        if zeros is not None:
            if self.minimum is not None or self.zero:
                raise ValueError(f"{form} got zeros beside a minimum or the zero {self.zero}; it has one of the three")
            if zeros.dtype is not torch.uint8 or zeros.shape != self.scale.shape:
                raise ValueError(
                    f"{form} got zeros {zeros.dtype} {tuple(zeros.shape)}; it needs uint8 {tuple(self.scale.shape)}, the "
                    "shape of its scale"
                )
        if self.order is not None and self.order.count != self.shape[1]:
            raise ValueError(f"{form} got an order of {self.order.count} inputs; it needs {self.shape[1]}")

    @property
    def name(self) -> str:
        """Format name: `int4_groups` or `int8_groups`."""
        return f"int{self.bits}_groups"

    @property
    def shape(self) -> tuple[int, int]:
        """Logical shape (N, K)."""
        n, num_bytes = self.values.shape
        return n, num_bytes * 8 // self.bits

    @property
    def features(self) -> frozenset[str]:
        """Features that the weight needs beyond its format: some of FEATURES."""
        return integer_features(self.scale, self.zeros, self.order)

    def unpacked(self) -> Tensor:
        """Return the stored integers, one per byte: uint8 [N, K]."""
        return self.values if self.bits == 8 else unpack_nibbles(self.values)

    def columns(self, index: Tensor | slice) -> Self:
        """Return whole groups of columns. Raises NotImplementedError for a weight with an order: its groups are scattered."""
        if self.order is not None:
            raise NotImplementedError(CANNOT_CUT.format(name=self.name))
        columns, groups = whole_groups(index, self.shape[1], self.group_size, self.name)
        if self.bits == 4:
            columns = columns[::2] // 2  # a group is whole bytes
        minimum = None if self.minimum is None else take_columns(self.minimum, groups)
        zeros = None if self.zeros is None else take_columns(self.zeros, groups)
        values = take_columns(self.values, columns)
        scale = take_columns(self.scale, groups)
        return replace(self, values=values, scale=scale, minimum=minimum, zeros=zeros)

    def dequantize(self) -> Tensor:
        """Return W as float32 [N, K], its columns in the order of the inputs."""
        n, k = self.shape
        num_groups = k // self.group_size
        w = self.unpacked().float().view(n, num_groups, self.group_size)
        if self.zeros is not None:
            w -= self.zeros.float().unsqueeze(-1)
        elif self.zero:
            w -= self.zero
        w *= self.scale.float().unsqueeze(-1)
        if self.minimum is not None:
            w += self.minimum.float().unsqueeze(-1)
        stored = w.view(n, k)
        return stored if self.order is None else self.order.restored(stored)
