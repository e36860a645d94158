"""Integers as people write them: `2048`, `25.6k`, `1K`. Exact, by decimal arithmetic.

Owns: the suffixes. Never does: check ranges. Called by: convert.
"""

from __future__ import annotations

import re
from decimal import Decimal

_HUMAN = re.compile(r"([+-]?\d{1,20}(?:\.\d{1,20})?)([kKmMgGtT]?|[KMGT]iB)", re.ASCII)
_FACTORS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}


def human_int(text: str) -> int:
    """Convert `2048`, `25.6k` (25600), `1K` (1024), `1G` or `1GiB` (2**30) exactly. Raises ValueError unless it is a whole
    number.
    """
    match = _HUMAN.fullmatch(text.strip().replace("_", ""))
    if not match:
        raise ValueError("expected an integer such as 2048, 25.6k (thousands), 1K (1024) or 8GiB")
    digits, suffix = match[1], match[2].removesuffix("iB")
    number = Decimal(digits) * _FACTORS[suffix]
    if suffix.isupper() and "." in digits:
        small = suffix.lower()
        hint = f"{digits}{small} is {_whole(Decimal(digits) * _FACTORS[small])}"
        raise ValueError(
            f"a fraction goes with {small} (a power of 1000), not with {suffix} (a power of 1024): {hint}, "
            f"{text.strip()} would be {_whole(number)}; write the number that you mean"
        )
    if number != number.to_integral_value():
        raise ValueError(f"expected a whole number, {text} is {number}")
    return int(number)


def _whole(number: Decimal) -> str:
    return f"{number.normalize():f}"
