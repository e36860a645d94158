"""Small functions of the state kernels, and where a sequence's state lies.

Owns: those. Never does: know an op. Called by: the kernels of this package.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_kernels.triton import portable

LINEAR_FROM = tl.constexpr(20.0)
"""Where the logarithm of 1 + exp(x) is x in float32."""


@triton.jit
def softplus(x: tl.tensor) -> tl.tensor:
    """The logarithm of 1 + exp(x), also where exp(x) is tiny: the quotient takes back what the sum has lost."""
    size = tl.exp(tl.minimum(x, LINEAR_FROM))
    rounded = 1.0 + size
    lost = rounded - 1.0
    divisor = tl.where(lost == 0.0, 1.0, lost)
    near = tl.where(lost == 0.0, size, tl.log(rounded) * portable.div(size, divisor))
    return tl.where(x > LINEAR_FROM, x, near)


@triton.jit
def silu(x: tl.tensor) -> tl.tensor:
    """x * sigmoid(x)."""
    return x * portable.sigmoid(x)


@triton.jit
def place_of(element: tl.tensor, table: tl.tensor, inside: tl.tensor, WORDS: tl.constexpr) -> tl.tensor:
    """Where numbers of a state lie: it takes the blocks of a row of the block table one after another.

    WORDS: numbers of a block.
    """
    block = tl.load(table + element // WORDS, mask=inside, other=0)
    return block.to(tl.int64) * WORDS + element % WORDS
