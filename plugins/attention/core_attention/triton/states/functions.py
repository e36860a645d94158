"""Small functions of the state kernels, and the location of a sequence's state.

Owns: these functions. Never does: know an op. Called by: the kernels of this package.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_kernels.triton import portable

LINEAR_FROM = tl.constexpr(20.0)
"""From here on log(1 + exp(x)) equals x in float32."""


@triton.jit
def softplus(x: tl.tensor) -> tl.tensor:
    """Return log(1 + exp(x)), also accurate where exp(x) is tiny: the quotient restores what the sum has lost."""
    size = tl.exp(tl.minimum(x, LINEAR_FROM))
    rounded = 1.0 + size
    lost = rounded - 1.0
    divisor = tl.where(lost == 0.0, 1.0, lost)
    near = tl.where(lost == 0.0, size, tl.log(rounded) * portable.div(size, divisor))
    return tl.where(x > LINEAR_FROM, x, near)


@triton.jit
def silu(x: tl.tensor) -> tl.tensor:
    """Return x * sigmoid(x) in float32."""
    return x * portable.sigmoid(x)


@triton.jit
def place_of(element: tl.tensor, table: tl.tensor, inside: tl.tensor, WORDS: tl.constexpr) -> tl.tensor:
    """Return the locations of numbers of a state, which occupies the blocks of a block-table row one after another.

    WORDS: numbers per block.
    """
    block = tl.load(table + element // WORDS, mask=inside, other=0)
    return block.to(tl.int64) * WORDS + element % WORDS


@triton.jit
def whole_chunks(past: tl.tensor, length: tl.tensor, size: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return the rows before the first chunk that begins in a step, and how many whole chunks it has. past: tokens before
    the step. length: rows of the step. size: tokens of a chunk; chunks begin at its multiples.
    """
    before = (size - past % size) % size
    return before, tl.maximum(length - before, 0) // size
