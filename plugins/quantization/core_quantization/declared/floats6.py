"""The layout of 6-bit floats with powers of two as scales (mxfp6).

Owns: names and shapes of its tensors, and their codes. Never does: round. Called by: choices of layouts.

weight: uint8 [N, K * 3 / 4]; three bytes hold four codes, the first in the lowest bits.
weight_scale: e8m0 [N, K / group].

A code has a sign, two exponent bits and three of the mantissa (e2m3), or three and two (e3m2). Every such number is also one of
e4m3, so the matrix is held as 8-bit floats with a scale a group, without rounding: no kernel reads codes of 6 bits. Source:
OCP Microscaling Formats 1.0; the order of the codes is Quark's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.floats import EXPONENTS, UNREAD
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Floats8, Run, planned
from core_quantization.declared.stored import Wanted

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

MANTISSA_BITS: Final = {"fp6_e2m3": 3, "fp6_e3m2": 2}
"""Bits of the mantissa by type; the exponent has the other bits of five."""
SIGN: Final = 32


class DeclaredFloat6:
    """The layout of 6-bit floats, of the kind `Layout`.

    dtype: `fp6_e2m3` or `fp6_e3m2`.
    group_size: inputs that share a scale.
    run: settings of all packed layers.
    """

    def __init__(self, dtype: str, group_size: int, run: Run) -> None:
        self._dtype = dtype
        self._how = Floats8("fp8_e4m3", group_size)
        self._run = run

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        rows, inputs = part.shape
        own = [
            Wanted("weight", ("U8",), [(rows, inputs // 4 * 3)]),
            Wanted("weight_scale", EXPONENTS, [(rows, -(-inputs // self._how.group_size))]),
        ]
        return planned(part, own, lambda _: self._how, self._run, UNREAD)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        import torch

        from core_quantization.declared.canonical import float8_weight, from_exponents

        table = torch.tensor(numbers_of(self._dtype)).to(torch.float8_e4m3fn).view(torch.uint8)
        values = table[_codes(tensors["weight"]).int()].view(torch.float8_e4m3fn)
        scale = from_exponents(tensors["weight_scale"].view(torch.uint8))
        return float8_weight(self._how, values.view(part.shape), scale)


def numbers_of(dtype: str) -> list[float]:
    """Return the 64 numbers of a type by code."""
    mantissa_bits = MANTISSA_BITS[dtype]
    steps = 1 << mantissa_bits
    bias = (1 << (4 - mantissa_bits)) - 1
    found = []
    for code in range(2 * SIGN):
        exponent, mantissa = divmod(code % SIGN, steps)
        leading = 1 if exponent else 0  # Below the smallest exponent numbers have no leading one.
        size = (leading + mantissa / steps) * 2.0 ** (max(exponent, 1) - bias)
        found.append(-size if code >= SIGN else size)
    return found


def _codes(packed: Tensor) -> Tensor:
    """Return the codes, uint8 [N, K], of bytes [N, K * 3 / 4]."""
    import torch

    low, middle, high = packed.view(packed.shape[0], -1, 3).unbind(-1)
    codes = (low & 63, (low >> 6) | ((middle & 15) << 2), (middle >> 4) | ((high & 3) << 4), high >> 2)
    return torch.stack(codes, dim=-1).flatten(1)
