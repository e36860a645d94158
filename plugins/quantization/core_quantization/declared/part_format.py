"""Canonical forms of packed matrices: formats, fuse keys and bytes of canonical weights.

Owns: the contents of a plan for each format. Never does: read a tensor. Torch-free. Called by: layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec

from core.api.specs import Activation, PartPlan, Unsupported
from core.plugin.hookspecs import LoadContext
from core_quantization.declared.arguments import DECLARED, activation_for
from core_quantization.declared.part import StoredPart
from core_quantization.declared.stored import Wanted, problem

GROUP_MULTIPLE: Final = 16
SCALE_BYTES: Final = {"F16": 2, "BF16": 2, "F32": 4}
ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
ORDER_BYTES: Final = 4
"""Bytes of one input in the order of permuted inputs."""
PLANES: Final = {1: 2, 2: 2, 3: 3, 5: 5, 6: 6}
"""Bits of integers that are stored in bit planes → the bits that they take there."""
PLANES_UNIT: Final = 32
"""Inputs in one unit of these planes."""
OFFERED: Final[dict[str, tuple[Activation, ...]]] = {
    "int4_groups": ("int8", "none"),
    "int8_groups": ("int8", "none"),
    **dict.fromkeys(("int2_super", "int3_super", "int5_super", "int6_super"), ("int8", "none")),
    "int8_channel": ("int8", "int8_row", "none"),
    "fp8_e4m3": ("bf16", "none", "fp8_row"),
    "fp8_e5m2": ("bf16", "none"),
    "nf4": ("bf16", "none"),
    "fp4": ("bf16", "none"),
    "mxfp4": ("int8", "bf16", "none"),
    "nvfp4": ("int8", "bf16", "none"),
}
"""Format → the precisions that its inputs may have, its default first."""
UNREAD_INPUTS: Final = Unsupported(
    f"--quantization-config.activation {DECLARED} is not served for checkpoints of this kind; leave it out"
)
"""The answer of layouts whose method reads no rounding of inputs."""


@dataclass(frozen=True, slots=True)
class Run:
    """The settings of all packed layers.

    activation: the user's argument. dtype: dtype of the run. roundings: roundings of inputs that are faster on the
        device.
    """

    activation: str
    dtype: str
    roundings: Sequence[str]

    @classmethod
    def of(cls, activation: str, context: LoadContext) -> Run:
        """Return the settings for an argument, on the device of a context."""
        return cls(activation, context.dtype, context.roundings)

    @property
    def declared(self) -> bool:
        """Whether inputs are rounded as the checkpoint declares."""
        return self.activation == DECLARED

    @property
    def of_matrices(self) -> Run:
        """Return the settings of matrices alone: a declared rounding of inputs is a step before the product."""
        return replace(self, activation="none") if self.declared else self

    def plan(
        self, part: StoredPart, reads: tuple[str, ...], form: str, key: str, nbytes: int, multiple: int
    ) -> PartPlan | Unsupported:
        """Return the plan of a part in one format.

        reads: suffixes of its tensors; missing ones are left out.
        key: distinguishes weights of one format that cannot be fused.
        multiple: number of inputs that cannot be cut apart.
        """
        if self.declared:
            return UNREAD_INPUTS
        offered = OFFERED[form]
        activation = activation_for(self.activation, offered, self.dtype, self.roundings)
        if activation is None:
            choices = " or ".join(offered)
            return Unsupported(
                f"it is held as {form}, whose inputs cannot be rounded to {self.activation}; choose {choices} for "
                "--quantization-config.activation"
            )
        return PartPlan(
            reads=part.names(*reads),
            format=form,
            activation=activation,
            fuse_key=f"{form}/{key}/{activation}",
            nbytes=nbytes,
            shard_multiple=multiple,
        )

    def plan_plain(self, part: StoredPart, reads: tuple[str, ...]) -> PartPlan | Unsupported:
        """Return the plan of a part that is unpacked to the run's own dtype. It fuses with plain neighbours. reads: see
        `plan`.
        """
        if self.declared:
            return UNREAD_INPUTS
        rows, inputs = part.shape
        activation: Activation = "bf16" if self.dtype == "bfloat16" else "none"
        nbytes = rows * inputs * ITEM_BYTES[self.dtype]
        return PartPlan(part.names(*reads), self.dtype, activation, "dense", nbytes)


class PartFormat(Protocol):
    """A canonical format of a part."""

    def plan(self, part: StoredPart, run: Run, reads: tuple[str, ...]) -> PartPlan | Unsupported:
        """Plan a part in this format, see `Run.plan`."""
        ...


def planned(
    part: StoredPart,
    wanted: Sequence[Wanted],
    how: Callable[[StoredPart], PartFormat],
    run: Run,
    unread: Sequence[str] = (),
) -> PartPlan | Unsupported:
    """Return the plan of a part whose tensors are those that its layout needs; else what is wrong with one of them.

    how: returns the format from these tensors. It is called after they have been checked.
    unread: suffixes of tensors without further information, which may be present.
    """
    wrong = problem(part, wanted)
    if wrong is not None:
        return Unsupported(wrong)
    reads = dict.fromkeys((*(tensor.suffix for tensor in wanted), *unread))
    return how(part).plan(part, run, tuple(reads))


@dataclass(frozen=True, slots=True)
class Integers:
    """Integers with a scale a group or row.

    bits: bits of an integer in the checkpoint, 1 to 8.
    group_size: inputs that share a scale.
    zeros: whether each group has a zero point; otherwise it is the middle of the range.
    channel: whether a scale belongs to a whole row.
    ordered: whether the inputs are permuted (act-order).
    scale: type of the scales in the checkpoint.
    minimum: whether each group has an offset that is added, of the scales' type.
    """

    bits: int
    group_size: int
    zeros: bool
    channel: bool
    ordered: bool
    scale: str
    minimum: bool = False

    @property
    def unpacked_bits(self) -> int:
        """Return the bits of an integer as layouts pass it: 4 or 8."""
        return 4 if self.bits <= 4 else 8

    @property
    def planes(self) -> int | None:
        """Return the bits that an integer takes in bit planes; None where it is stored in 4 or 8 bits."""
        fits = self.scale == "F16" and self.group_size % PLANES_UNIT == 0
        return PLANES.get(self.bits) if fits else None

    @property
    def zero(self) -> int:
        """Return the unsigned integer that means zero, where groups have no zero points."""
        return 1 << (self.bits - 1)

    @property
    def form(self) -> str:
        """Return the name of the canonical format."""
        only_scales = not self.zeros and not self.ordered and not self.minimum
        if self.planes is not None:
            return f"int{self.planes}_super"
        if self.unpacked_bits == 8 and self.channel and only_scales:
            return "int8_channel"
        return f"int{self.unpacked_bits}_groups"

    def plan(self, part: StoredPart, run: Run, reads: tuple[str, ...]) -> PartPlan | Unsupported:
        """Plan a part in this format, see `Run.plan`."""
        n, k = part.shape
        if self.form == "int8_channel":
            return run.plan(part, reads, self.form, "row", n * (k + 4), 1)
        size = self.group_size
        if k % size:
            return Unsupported(f"its {k} inputs are not a multiple of {size}, its group size")
        if size % GROUP_MULTIPLE:
            return Unsupported(
                f"its groups of {size} inputs are no multiple of {GROUP_MULTIPLE}; quantize it again with groups of 32 to 128"
            )
        zero_bytes = 1 if self.zeros else 0
        floats = 2 if self.minimum else 1
        group_bytes = floats * SCALE_BYTES[self.scale] + zero_bytes
        held_bits = self.planes or self.unpacked_bits
        nbytes = n * (k * held_bits // 8 + k // size * group_bytes)
        lowest = "zeros" if self.zeros else f"zero{self.zero}"
        key = f"{size}/{self.scale}/{lowest}"
        if self.minimum:
            key += "/minimum"
        if not self.ordered:
            return run.plan(part, reads, self.form, key, nbytes, size)
        plan = run.plan(part, reads, self.form, key, nbytes + ORDER_BYTES * k, k)
        return plan if isinstance(plan, Unsupported) else msgspec.structs.replace(plan, ordered=True)


@dataclass(frozen=True, slots=True)
class Floats8:
    """8-bit floats with a scale a group of inputs.

    form: `fp8_e4m3` or `fp8_e5m2`.
    group_size: inputs that share a scale, at most a row.
    """

    form: str
    group_size: int

    def plan(self, part: StoredPart, run: Run, reads: tuple[str, ...]) -> PartPlan | Unsupported:
        """Plan a part in this format, see `Run.plan`."""
        n, k = part.shape
        num_scales = -(-k // self.group_size)
        multiple = self.group_size if num_scales > 1 else 1
        return run.plan(part, reads, self.form, str(self.group_size), n * (k + 4 * num_scales), multiple)


@dataclass(frozen=True, slots=True)
class Floats4:
    """4-bit floats with a narrow scale a block of inputs.

    form: `mxfp4`, or `nvfp4` with one more scale.
    """

    form: str
    block_size: int

    def plan(self, part: StoredPart, run: Run, reads: tuple[str, ...]) -> PartPlan | Unsupported:
        """Plan a part in this format, see `Run.plan`."""
        n, k = part.shape
        size = self.block_size
        if k % size or size % GROUP_MULTIPLE:
            return Unsupported(
                f"its {k} inputs are in blocks of {size}; blocks must divide the inputs and be a multiple of {GROUP_MULTIPLE}"
            )
        row_bytes = 4 if self.form == "nvfp4" else 0
        return run.plan(part, reads, self.form, str(size), n * (k // 2 + k // size + row_bytes), size)
