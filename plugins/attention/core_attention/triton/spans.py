"""The division of a row's keys into sections: the same for a row whatever its batch, its chunk and the division of the
work.

Owns: tiles of keys, sections, and their merge in order; the look-up of a sequence. Never does: read a key.
Called by: the attention kernel, the kernel that lists its work.

A row's keys are divided at absolute positions into sections of 128 · 2^k keys, with the smallest k for which `SECTIONS`
sections hold all keys that the row sees. The division therefore depends on the row's keys alone. Within a section,
the softmax runs from tile to tile; sections are merged in order. A program may therefore take any run of whole sections
and still produce the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

SPAN = tl.constexpr(128)
"""The shortest section; the size of a tile divides it."""

SPAN_BITS = tl.constexpr(7)

SECTIONS = tl.constexpr(16)
SLOTS = tl.constexpr(17)
"""Maximum number of sections that a row can touch: with a window, the first and the last one may be partial."""

RUNS = tl.constexpr(18)
"""Maximum number of sections that a tile can touch: the windows of its rows begin at different keys."""


@triton.jit
def first_key(position: tl.tensor, WINDOW: tl.constexpr, CHUNKED: tl.constexpr) -> tl.tensor:
    """Return the first position that a row at `position` sees. WINDOW 0: no window."""
    if WINDOW == 0:
        return position * 0
    elif CHUNKED:
        return position - position % WINDOW
    else:
        return tl.maximum(position - WINDOW + 1, 0)


@triton.jit
def section_bits(position: tl.tensor, WINDOW: tl.constexpr) -> tl.tensor:
    """Return log2 of the number of keys in each section of a row at `position`. Shifts by it take few registers, where
    a division takes many.
    """
    visible = position + 1
    if WINDOW > 0:
        visible = tl.minimum(visible, WINDOW)
    return bits_of(visible)


@triton.jit
def bits_of(visible: tl.tensor) -> tl.tensor:
    """Return log2 of the number of keys in each section of a row that sees `visible` keys."""
    least = (visible + SPAN * SECTIONS - 1) // (SPAN * SECTIONS)
    bits = (2 * least - 1).to(tl.float32).to(tl.int32, bitcast=True)
    doublings = (bits >> 23) - 127  # the exponent: log2 of `least`, rounded up
    return SPAN_BITS + doublings


@triton.jit
def is_boundary(key: tl.tensor, bits: tl.tensor) -> tl.tensor:
    """Whether a section begins at a key."""
    return (key & ((1 << bits) - 1)) == 0


@triton.jit
def finite(maximum: tl.tensor) -> tl.tensor:
    """Return the value to subtract from scores: 0 where no key was seen yet, since -inf - -inf is NaN."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@triton.jit
def weight(maximum: tl.tensor, common: tl.tensor) -> tl.tensor:
    """Return the factor for a sum when its maximum is replaced by a common one; both are base-2 logarithms."""
    return tl.exp2(maximum - finite(common))


@triton.jit
def merged(total: tl.tensor, old_weight: tl.tensor, part: tl.tensor, new_weight: tl.tensor) -> tl.tensor:
    """Add the next section's sum, both weighted. An empty section changes no bit."""
    return tl.fma(total, old_weight, part * new_weight)


@triton.jit
def sequence_of_tile(tile: tl.tensor, cu_seqlens: tl.tensor, num_seqs: tl.tensor, QUERIES: tl.constexpr) -> tl.tensor:
    """Return the sequences [n] of tiles [n] of QUERIES rows: sequence s has the tiles from cu_seqlens[s] // QUERIES + s
    on.
    """
    step = 1
    while step < num_seqs:
        step *= 2
    nth = tile * 0
    while step > 0:
        further = nth + step
        is_sequence = further < num_seqs
        begin = tl.load(cu_seqlens + further, mask=is_sequence, other=0) // QUERIES + further
        nth = tl.where(is_sequence & (begin <= tile), further, nth)
        step //= 2
    return nth


@triton.jit
def sequence_of_row(row: tl.tensor, cu_seqlens: tl.tensor, num_seqs: tl.tensor) -> tl.tensor:
    """Return the sequence of a live row."""
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        begin = tl.load(cu_seqlens + middle)
        if begin <= row:
            low = middle + 1
        else:
            high = middle
    return low - 1
