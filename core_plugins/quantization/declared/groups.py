"""Integers in groups along the inputs, as many formats store them: how they are held, and how they get there.

Owns: sizes and keys of the plan, and the canonical weight. Never does: know how a format packs its words.
Called by: layouts of integers in groups. Torch is only imported to build a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.api.specs import Activation, PartPlan
from core_plugins.quantization.declared.part import StoredPart

if TYPE_CHECKING:
    from torch import Tensor

    from core.weights.formats import IntGroups

ACTIVATIONS: Final[tuple[Activation, ...]] = ("int8", "none")
SCALE_BYTES: Final = {"F16": 2, "BF16": 2, "F32": 4}
"""By type of the scales in the file, bytes of one in memory."""
SMALLEST: Final = 16
"""Groups of canonical weights are multiples of it."""
ORDER_BYTES: Final = 4
"""Of an input, in the order of a weight with act-order."""
CHUNK: Final = 1 << 20
"""Integers that are unpacked at a time, so that temporaries stay small beside the weight."""


@dataclass(frozen=True, slots=True)
class Groups:
    """How the matrices of one layout are held.

    bits: of an integer in the file, up to 8; those below 4 are held with 4.
    size: inputs that share a scale; -1: all.
    zero: one zero point for all; None: each group has its own.
    activation: precision to which inputs are rounded.
    ordered: whether the columns may lie in another order than the inputs (act-order).
    """

    bits: int
    size: int
    zero: int | None
    activation: Activation
    ordered: bool = False

    @property
    def held_bits(self) -> int:
        """Of an integer in memory: 4 or 8."""
        return 4 if self.bits <= 4 else 8

    def inputs(self, part: StoredPart) -> int:
        """Inputs of the part that share a scale."""
        return part.shape[1] if self.size == -1 else self.size

    def count(self, part: StoredPart) -> int:
        """Groups of a row."""
        return part.shape[1] // self.inputs(part)

    def problem(self, part: StoredPart) -> str | None:
        """A sentence when the part cannot be cut into groups of this size."""
        size = self.inputs(part)
        inputs = part.shape[1]
        if inputs % size:
            return (
                f"the declaration says groups of {size}, which do not divide the {inputs} inputs of '{part.own_name}'"
            )
        if size % SMALLEST:
            return f"groups of {size} inputs ('{part.own_name}') cannot be held; multiples of {SMALLEST} can"
        return None

    def plan(self, part: StoredPart, reads: tuple[str, ...], scale_type: str) -> PartPlan:
        """The plan of a part. scale_type: of its scales in the file."""
        rows, inputs = part.shape
        size = self.inputs(part)
        held = f"int{self.held_bits}_groups"
        zero = "zeros" if self.zero is None else f"zero{self.zero}"
        key = f"{held}/{size}/{scale_type}/{zero}/{self.activation}"
        value_bytes = inputs * self.held_bits // 8
        zero_bytes = 1 if self.zero is None else 0
        row_bytes = value_bytes + self.count(part) * (SCALE_BYTES[scale_type] + zero_bytes)
        order_bytes = 0
        if self.ordered:
            # Parts of one parent multiply the same inputs, hence they share their order.
            key = f"{key}/{part.name.rpartition('.')[0]}"
            order_bytes = inputs * ORDER_BYTES
        return PartPlan(
            reads=reads,
            format=held,
            activation=self.activation,
            fuse_key=key,
            nbytes=rows * row_bytes + order_bytes,
            shard_multiple=inputs if self.ordered else size,
        )

    def weight(
        self, part: StoredPart, values: Tensor, scale: Tensor, zeros: Tensor | None, order: Tensor | None = None
    ) -> IntGroups:
        """The canonical weight.

        values: as `held_values` gives them.
        scale: [N, groups], a view or not.
        zeros: uint8 [N, groups]; None where there is one zero point for all.
        order: int64 [K], the input of each stored column; None: as they come.
        """
        from core.weights.input_order import InputOrder
        from core.weights.int_groups import IntGroups

        own_scale = scale.contiguous() if scale.stride(-1) != 1 else scale.clone()
        return IntGroups(
            bits=self.held_bits,
            group_size=self.inputs(part),
            values=values,
            scale=own_scale,
            zero=self.zero or 0,
            zeros=None if zeros is None else zeros.contiguous(),
            order=None if order is None else InputOrder.of(order),
        )

    def held_values(self, part: StoredPart, unpack: Callable[[slice], Tensor], step: int = 1) -> Tensor:
        """The integers as they are held: uint8 [N, K], or pairs [N, K // 2].

        unpack: rows of the matrix to its integers, uint8 [rows, K].
        step: rows that can be unpacked alone.
        """
        import torch

        from core_plugins.quantization.declared.bits import to_nibbles

        rows, inputs = part.shape
        values = torch.empty((rows, inputs * self.held_bits // 8), dtype=torch.uint8)
        for some in _chunks(rows, inputs, step):
            integers = unpack(some)
            values[some] = to_nibbles(integers) if self.held_bits == 4 else integers
        return values


def _chunks(rows: int, inputs: int, step: int) -> Iterator[slice]:
    count = max(1, CHUNK // (inputs * step)) * step
    for start in range(0, rows, count):
        yield slice(start, min(start + count, rows))
