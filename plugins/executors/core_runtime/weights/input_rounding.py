"""The rounding of a layer's inputs to the narrow numbers that a checkpoint declares.

Owns: the numbers, the rules for scales, and the arithmetic, one correctly rounded operation a step. Never does:
multiply, or look at more than one row for one result. Called by: the kernel of `PreparedInputs`.

Every operation here acts on single numbers, or takes the largest magnitude of a row or group. The bits of a row
therefore do not depend on other rows, nor on the processor. A rule is the formula of the tool that defines the
declaration: formulas that are equal on paper round differently.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from core_runtime.weights.canonical import CanonicalWeight, whole_groups

Rule = Literal["fixed", "divide", "largest", "range", "inverse", "even", "carry", "floor", "ceil", "quotient", "fp8"]


class Numbers(NamedTuple):
    """A kind of narrow number.

    largest: largest magnitude; of integers the largest positive one, whose negative counterpart is one less.
    mantissa: stored bits of the mantissa; -1: integers.
    least: exponent of the smallest normal number, below which steps stay equal.
    """

    largest: float
    mantissa: int
    least: int

    @property
    def is_integer(self) -> bool:
        """Whether the numbers are integers."""
        return self.mantissa < 0

    @property
    def exponent(self) -> int:
        """Return the exponent of the largest number."""
        return math.frexp(self.largest)[1] - 1


NUMBERS: Final = {
    "int4": Numbers(7.0, -1, 0),
    "int8": Numbers(127.0, -1, 0),
    "fp4": Numbers(6.0, 1, 0),
    "fp6_e2m3": Numbers(7.5, 3, 0),
    "fp6_e3m2": Numbers(28.0, 2, -2),
    "fp8_e4m3": Numbers(448.0, 3, -6),
    "fp8_e5m2": Numbers(57344.0, 2, -14),
}
"""Kinds of numbers by name. Floats are those of OCP Microscaling Formats 1.0 and OFP8; none has infinities here."""
BIAS: Final = 127
"""The power of two 2^e is entry e + BIAS of `_powers`."""
FLOAT_MANTISSA: Final = 23
CARRY_MANTISSA: Final = 1
"""Bits of the mantissa to which rule `carry` rounds: those of 4-bit floats."""
LARGEST_SCALE: Final = 448.0
LEAST_SCALE: Final = 0.125
"""Scale of a group of zeros where scales are 8-bit floats, as compressed-tensors has it."""
FBGEMM_LEAST: Final = 1e-12
"""Magnitude that a row has at least where rule `inverse` scales it."""


@dataclass(frozen=True, slots=True)
class InputRounding:
    """How inputs x [T, K] are rounded; one step of `PreparedInputs`.

    numbers: a name of NUMBERS.
    group_size: inputs that share a scale; 0: a row, or with rule `fixed` all inputs.
    rule: how a scale follows from the largest magnitude m of its inputs, with L the largest number and E its exponent:
        `fixed`     it is `scale`, for all inputs (a static scale), with the zero point `zero`.
        `divide`    m / L; of integers m / ((L + L + 1) / 2), as compressed-tensors has it.
        `largest`   m / L, of integers too (QQQ).
        `range`     (highest - lowest) / (2L + 1), with a zero point; of integers alone.
        `inverse`   inputs are multiplied by L / m, rounded, and multiplied by 1 / (L / m), as FBGEMM does.
        `even`      2^(e - E), with e the exponent of m, after m is rounded to the numbers' mantissa (Quark).
        `carry`     2^(e - E), with e the exponent of m, or from 1.75 * 2^e on e + 1, whatever the numbers (compressed-tensors).
        `floor`     2^(e - E), with e the exponent of m (OCP Microscaling Formats 1.0).
        `ceil`      2^(ceil(log2 m) - E).
        `quotient`  the smallest power of two of at least m / L (scales named ue8m0).
        `fp8`       m / L times `scale`, rounded to e4m3, and divided by `scale` again (nvfp4).
    scale: see `fixed` and `fp8`.
    zero: zero point of `fixed`.
    bound: m is at most this: larger inputs are cut off at the largest number.
    """

    numbers: str
    rule: Rule
    group_size: int = 0
    scale: float = 1.0
    zero: int = 0
    bound: float = math.inf

    @property
    def nbytes(self) -> int:
        """Bytes in memory: none, all are numbers of the layer's description."""
        return 0

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [T, K] rounded, in its own dtype; computed in float32."""
        wide = x.float()
        if self.group_size == 0 or self.rule == "fixed":
            return self._rounded(wide).to(x.dtype)
        groups = wide.unflatten(-1, (-1, self.group_size))
        return self._rounded(groups).flatten(-2).to(x.dtype)

    def prepared(self, linear: Callable[[CanonicalWeight], object]) -> InputRounding:
        """Return the step itself: it has no product."""
        return self

    def columns(self, index: Tensor | slice, inputs: int) -> InputRounding:
        """Return the step for a part of the inputs. Raises ValueError where a scale would be that of this part alone."""
        if self.rule == "fixed":
            return self
        if self.group_size == 0:
            raise ValueError(
                f"its {inputs} inputs are rounded to {self.numbers} with one scale for a row, which is the row's as a whole; "
                "leave --quantization-config.activation out, or --tensor-parallel-size at 1"
            )
        whole_groups(index, inputs, self.group_size, f"{self.numbers} input")
        return self

    def _rounded(self, x: Tensor) -> Tensor:
        """Return float32 [..., K] rounded; the last axis shares a scale."""
        kind = NUMBERS[self.numbers]
        if self.rule == "inverse":
            largest = x.abs().amax(-1, keepdim=True).clamp(FBGEMM_LEAST, self.bound)
            inverse = kind.largest / largest
            return nearest(x * inverse, kind) * (1.0 / inverse)
        if self.rule == "range":
            return _in_range(x, kind)
        if self.rule == "fixed":
            scale = torch.full((), self.scale, dtype=torch.float32, device=x.device)
            return (nearest(x / scale + self.zero, kind) - self.zero) * scale
        scale = self.scale_of(x.abs().amax(-1, keepdim=True).clamp(max=self.bound))
        return nearest(x / scale, kind) * scale

    def scale_of(self, largest: Tensor) -> Tensor:
        """Return the scales of groups with these largest magnitudes, float32 of the same shape, none of them 0."""
        kind = NUMBERS[self.numbers]
        half_range = kind.largest + 0.5 if kind.is_integer and self.rule == "divide" else kind.largest
        if self.rule in ("divide", "largest"):
            scale = largest / half_range
            return torch.where(scale == 0, torch.ones_like(scale), scale)
        if self.rule == "fp8":
            quotient = self.scale * (largest / kind.largest)
            narrow = quotient.clamp(max=LARGEST_SCALE).to(torch.float8_e4m3fn).float()
            return torch.where(narrow == 0, torch.full_like(narrow, LEAST_SCALE), narrow) / self.scale
        return _powers(largest.device)[(self._exponent(largest, kind) + BIAS).clamp(0, 2 * BIAS).long()]

    def _exponent(self, largest: Tensor, kind: Numbers) -> Tensor:
        """Return the exponents of scales that are powers of two, int32."""
        if self.rule in ("even", "carry"):  # half a step of a mantissa may carry into the exponent
            mantissa_bits = kind.mantissa if self.rule == "even" else CARRY_MANTISSA
            bits = largest.view(torch.int32) + (1 << (FLOAT_MANTISSA - 1 - mantissa_bits))
            return (bits >> FLOAT_MANTISSA) - BIAS - kind.exponent
        of = largest / kind.largest if self.rule == "quotient" else largest
        mantissa, above = torch.frexp(of)  # of = mantissa * 2^above, with a mantissa of 1/2 up to 1
        if self.rule == "floor":
            return above - 1 - kind.exponent
        ceiling = torch.where(mantissa == 0.5, above - 1, above)
        return ceiling if self.rule == "quotient" else ceiling - kind.exponent


def nearest(x: Tensor, kind: Numbers) -> Tensor:
    """Return the nearest numbers of a kind, float32; ties go to the even one, and what is too large to the largest."""
    low = -kind.largest - 1 if kind.is_integer else -kind.largest
    cut = x.clamp(low, kind.largest)
    if kind.is_integer:
        return cut.round()
    _, above = torch.frexp(cut)
    exponent = (above - 1).clamp(kind.least, BIAS)
    step = _powers(x.device)[(exponent - kind.mantissa + BIAS).long()]
    return (cut / step).round() * step


def _in_range(x: Tensor, kind: Numbers) -> Tensor:
    """Return x [..., K] rounded to integers between its lowest and highest number, of which one is at least 0."""
    lowest = x.amin(-1, keepdim=True).clamp(max=0)
    highest = x.amax(-1, keepdim=True).clamp(min=0)
    least = -kind.largest - 1
    scale = (highest - lowest) / (2 * kind.largest + 1)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = (least - lowest / scale).clamp(least, kind.largest).round()
    return (nearest(x / scale + zero, kind) - zero) * scale


@functools.cache
def _powers(device: torch.device) -> Tensor:
    """Return 2^-127 to 2^127, float32 [255]: exact, while a library's power may not be."""
    return torch.tensor([2.0**exponent for exponent in range(-BIAS, BIAS + 1)], device=device)
