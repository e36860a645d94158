"""Integers of 2 to 6 bits in bit planes, with scales of one or two levels: the K and IQ types of GGUF, 3-bit GPTQ.

Owns: the meaning of the planes and of both levels. Never does: quantize. Called by: quantization methods, kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from core_runtime.weights.canonical import CanonicalWeight, take_columns, whole_groups
from core_runtime.weights.input_order import InputOrder
from core_runtime.weights.int_groups import CANNOT_CUT, IntGroups, integer_features
from core_runtime.weights.tables import TABLES

UNIT = 32
"""Inputs per unit. A super-group consists of whole units, on whose planes kernels work."""
GROUP_SIZES = (16, 32)


def unpack_plane(plane: Tensor, bits: int) -> Tensor:
    """Unpack uint8 [N, K * bits / 8] to integers of `bits` bits, one per byte: [N, K]; the lowest bits are the first k."""
    fields = [(plane >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return torch.stack(fields, dim=-1).reshape(plane.shape[0], -1)


def pack_plane(fields: Tensor, bits: int) -> Tensor:
    """Pack integers of `bits` bits, the reverse of `unpack_plane`."""
    count = 8 // bits
    parts = fields.view(fields.shape[0], -1, count)
    plane = torch.zeros(parts.shape[:2], dtype=torch.uint8)
    for place in range(count):
        plane |= parts[:, :, place] << (place * bits)
    return plane


@dataclass(frozen=True, slots=True)
class SuperGroups(CanonicalWeight):
    """W[n, order[k]] = s * (integer - zero) + m, or s * a number of TABLES[table].

    s = scale[n, k // super_size] * sub_scale[n, k // group_size], and m = minimum_scale * sub_minimum in the same way.

    bits: bits of an integer, 2 to 6; those of the table, if there is one.
    group_size: inputs that share the lower level, 16 or 32.
    super_size: inputs that share `scale`; a multiple of 32 that divides K.
    zero: subtracted from each integer; 0 with a table or zeros.
    low: uint8 [N, K * l / 8], the low bits of the integers: l = 2 where `bits` is 2 or 3, else 4.
    high: uint8 [N, K * (bits - l) / 8], the other bits, or None. In both planes the lowest bits of a byte are the first k.
    scale: float16 [N, K // super_size].
    sub_scale: int8 [N, K // group_size]; None: 1 everywhere; uint8 where `minimum_scale` has no `sub_minimum`: the low
        nibble is the sub-scale, the high one the sub-minimum.
    minimum_scale: float16 [N, K // super_size], or None: no minimum.
    sub_minimum: int8 [N, K // group_size], or None: see `sub_scale`.
    table: a name of TABLES, or None.
    zeros: uint8 [N, K // super_size], a zero point per super-group instead of `zero`, without minima; or None.
    order: see `IntGroups`.
    """

    bits: int
    group_size: int
    super_size: int
    low: Tensor
    scale: Tensor
    high: Tensor | None = None
    sub_scale: Tensor | None = None
    minimum_scale: Tensor | None = None
    sub_minimum: Tensor | None = None
    zero: int = 0
    table: str | None = None
    zeros: Tensor | None = None
    order: InputOrder | None = None

    def __post_init__(self) -> None:
        """Validate the fields. Raises ValueError for other types, shapes or combinations."""
        problem = self._combination_problem() or self._tensor_problem()
        if problem is not None:
            raise ValueError(f"super-groups of {self.bits} bits: {problem}")

    def _combination_problem(self) -> str | None:
        if self.bits not in range(2, 7) or self.group_size not in GROUP_SIZES:
            return f"bits are 2 to 6, group_size is 16 or 32; got {self.bits} and {self.group_size}"
        inputs = self.shape[1]
        if self.super_size < UNIT or self.super_size % UNIT or inputs % self.super_size:
            return f"super_size is a multiple of {UNIT} that divides the {inputs} inputs; got {self.super_size}"
        if self.order is not None and self.order.count != inputs:
            return f"an order has the {inputs} inputs; got {self.order.count}"
        if self.sub_minimum is not None and (self.minimum_scale is None or self.sub_scale is None):
            return "sub_minimum needs minimum_scale and sub_scale"
        return self._table_problem()

    def _table_problem(self) -> str | None:
        """Return what is wrong with the table, or with the zero points, which cannot be combined with a table."""
        if self.table is not None and self.table not in TABLES:
            return f"a table is one of {', '.join(TABLES)}; got '{self.table}'"
        if self.table is not None and (self.bits != TABLES[self.table].bits or self.zero):
            return f"table {self.table} is for {TABLES[self.table].bits} bits without a zero"
        if self.zeros is not None and (self.zero or self.minimum_scale is not None or self.table is not None):
            return "zeros stand in place of a zero, minima and a table"
        return None

    def _tensor_problem(self) -> str | None:
        n, k = self.shape
        high_bits = self.bits - self.low_bits
        nibbles = self.minimum_scale is not None and self.sub_minimum is None
        supers = (n, k // self.super_size)
        groups = (n, k // self.group_size)
        wanted = {
            "low": (torch.uint8, (n, k * self.low_bits // 8)),
            "high": (torch.uint8, (n, k * high_bits // 8)),
            "scale": (torch.float16, supers),
            "minimum_scale": (torch.float16, supers),
            "zeros": (torch.uint8, supers),
            "sub_scale": (torch.uint8 if nibbles else torch.int8, groups),
            "sub_minimum": (torch.int8, groups),
        }
        if (self.high is None) != (high_bits == 0):
            return f"the plane of the high bits has {high_bits} bits an input"
        for name, tensor in self.tensors().items():
            dtype, shape = wanted[name]
            if tensor.dtype is not dtype or tensor.shape != shape:
                return f"{name} is {tensor.dtype} {tuple(tensor.shape)}, expected {dtype} {shape}"
        return None

    @property
    def name(self) -> str:
        """`int2_super` to `int6_super`, or the table's name, such as `iq4_super`."""
        return f"{self.table or f'int{self.bits}'}_super"

    @property
    def features(self) -> frozenset[str]:
        """Features that the weight needs beyond its format; see `IntGroups.features`."""
        return integer_features(self.scale, self.zeros, self.order)

    @classmethod
    def of(cls, weight: IntGroups, bits: int) -> SuperGroups:
        """Convert a weight whose integers are below 2 ** bits. Raises ValueError when they or its groups do not fit."""
        integers = weight.unpacked()
        if int(integers.max()) >> bits:
            raise ValueError(f"integers up to {int(integers.max())} do not fit {bits} bits")
        low_bits = _low_bits(bits)
        low = pack_plane(integers & ((1 << low_bits) - 1), low_bits)
        high = pack_plane(integers >> low_bits, bits - low_bits) if bits > low_bits else None
        return cls(
            bits=bits,
            group_size=UNIT,
            super_size=weight.group_size,
            low=low,
            high=high,
            scale=weight.scale,
            minimum_scale=weight.minimum,
            zero=weight.zero,
            zeros=weight.zeros,
            order=weight.order,
        )

    @property
    def low_bits(self) -> int:
        """Bits of an integer in the low plane."""
        return _low_bits(self.bits)

    @property
    def shape(self) -> tuple[int, int]:
        """Logical shape (N, K)."""
        n, num_bytes = self.low.shape
        return n, num_bytes * 8 // self.low_bits

    def columns(self, index: Tensor | slice) -> Self:
        """Return whole units of 32 columns. A cut through a super-group makes super-groups smaller and repeats their scales.

        Raises NotImplementedError for a weight with an order: its groups are scattered.
        """
        if self.order is not None:
            raise NotImplementedError(CANNOT_CUT.format(name=self.name))
        columns, units = whole_groups(index, self.shape[1], UNIT, self.name)
        super_size = self._super_size_of(units)
        parts = {}
        for name, tensor in self.tensors().items():
            if name in ("scale", "minimum_scale", "zeros"):
                chosen = columns[::super_size] // self.super_size
            else:
                # The entries of a unit: bytes of a plane, or sub-scales.
                count = tensor.shape[1] * UNIT // self.shape[1]
                chosen = (units.unsqueeze(1) * count + torch.arange(count)).flatten()
            parts[name] = take_columns(tensor, chosen)
        return replace(self, super_size=super_size, **parts)

    def _super_size_of(self, units: Tensor) -> int:
        """Return the largest super-group size for which `units` are whole super-groups."""
        size = self.super_size
        while size > UNIT and not _whole(units, size // UNIT):
            size //= 2
        return size if size % UNIT == 0 and _whole(units, size // UNIT) else UNIT

    def integers(self) -> Tensor:
        """Return the stored integers, one per byte: uint8 [N, K]."""
        low = unpack_plane(self.low, self.low_bits)
        if self.high is None:
            return low
        return low | unpack_plane(self.high, self.bits - self.low_bits) << self.low_bits

    def wide_scales(self) -> tuple[Tensor, Tensor | None]:
        """Return the scales and minima of groups, float32 [N, K // group_size]; both are exact."""
        groups = self.super_size // self.group_size
        sub_scale = self.sub_scale
        sub_minimum = self.sub_minimum
        if self.minimum_scale is not None and sub_scale is not None and sub_minimum is None:
            sub_minimum = sub_scale >> 4
            sub_scale = sub_scale & 15
        scale = _scaled(self.scale, sub_scale, groups)
        if self.minimum_scale is None:
            return scale, None
        return scale, _scaled(self.minimum_scale, sub_minimum, groups)

    def dequantize(self) -> Tensor:
        """Return W as float32 [N, K]."""
        n, k = self.shape
        integers = self.integers()
        if self.table is None:
            w = integers.float() - self.zero
            if self.zeros is not None:
                w -= self.zeros.float().repeat_interleave(self.super_size, dim=1)
        else:
            table = torch.tensor(TABLES[self.table].numbers, dtype=torch.float32, device=integers.device)
            w = table[integers.int()]
        scale, minimum = self.wide_scales()
        w = w.view(n, -1, self.group_size) * scale.unsqueeze(-1)
        if minimum is not None:
            w = w + minimum.unsqueeze(-1)
        stored = w.view(n, k)
        return stored if self.order is None else self.order.restored(stored)


def _low_bits(bits: int) -> int:
    return 2 if bits < 4 else 4


def _scaled(scale: Tensor, sub: Tensor | None, groups: int) -> Tensor:
    """Return scales of super-groups times those of their groups, float32."""
    wide = scale.float().repeat_interleave(groups, dim=1)
    return wide if sub is None else wide * sub.float()


def _whole(units: Tensor, count: int) -> bool:
    """Whether `units` are runs of `count`, each starting at a multiple of it."""
    if len(units) % count:
        return False
    runs = units.view(-1, count)
    first = runs[:, :1]
    return bool((first % count == 0).all()) and torch.equal(runs, first + torch.arange(count))
