"""The rounding of a packed layer's inputs, as the extension reads it.

Owns: the numbers that describe a rule to `native/rounding.inc.h`. Never does: round. Called by: `NativeLinear`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from core_runtime.weights.input_rounding import FBGEMM_LEAST, NUMBERS, InputRounding

RULES: Final = MappingProxyType(
    {
        "fixed": 1,
        "divide": 2,
        "largest": 3,
        "range": 4,
        "inverse": 5,
        "even": 6,
        "carry": 7,
        "floor": 8,
        "ceil": 9,
        "quotient": 10,
        "fp8": 11,
    }
)
"""Rule → its number, `InputRule` of `native/native.h`."""
OWN_NUMBERS: Final = ("fixed", "fp8", "inverse")
"""Rules whose scale or bound is a tensor of each layer."""


def rounding_numbers(step: InputRounding) -> tuple[float, ...]:
    """Return the numbers of a rule, in the order of `_native.linear_round`."""
    kind = NUMBERS[step.numbers]
    group = 0 if step.rule == "fixed" else step.group_size
    whole = (RULES[step.rule], kind.mantissa, kind.exponent, step.zero, group)
    return (*whole, kind.largest, 2.0**kind.least, 2.0**-kind.mantissa, step.scale, step.bound, FBGEMM_LEAST)


def common_rounding(step: InputRounding | None) -> InputRounding | None:
    """Return the rounding without the numbers that each layer has for itself: its static scale and its bound."""
    return None if step is None else replace(step, scale=1.0, zero=0, bound=math.inf)


def rounds_apart(step: InputRounding | None) -> bool:
    """Whether layers of one form may round the same inputs differently, by numbers of their own."""
    return step is not None and step.rule in OWN_NUMBERS
