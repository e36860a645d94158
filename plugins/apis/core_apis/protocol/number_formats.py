"""Number formats in which clients request vectors.

Owns: their names. Called by: bodies to pool, `vector_bytes`.
"""

from __future__ import annotations

from typing import Literal

NumberFormat = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Endianness = Literal["native", "big", "little"]
