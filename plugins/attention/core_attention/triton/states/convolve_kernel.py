"""Kernels of the causal depthwise convolution before a recurrence.

Owns: its sum, tap by tap, and the update of the input window. Never does: know an op. Called by: `layer.py`.

`convolve` processes all rows at once without changing the windows; `slide` then advances them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_attention.triton import spans
from core_attention.triton.states import functions
from core_kernels.triton import portable

VARYING = ["num_seqs", "table_stride"]


@triton.jit
def _input(
    x: tl.tensor,
    row: tl.tensor,
    channel: tl.tensor,
    wanted: tl.tensor,
    x_row: tl.tensor,
    CHANNELS: tl.constexpr,
    GATED: tl.constexpr,
) -> tl.tensor:
    """Load a row's convolution input: its channels, or B * x of `short_conv`."""
    place = x + row.to(tl.int64) * x_row + channel
    value = portable.widen(tl.load(place, mask=wanted, other=0.0))
    if GATED:
        value = value * portable.widen(tl.load(place + 2 * CHANNELS, mask=wanted, other=0.0))
    return value


@triton.jit(do_not_specialize=VARYING)
def convolve(
    x: tl.tensor,
    out: tl.tensor,
    cache: tl.tensor,
    taps: tl.tensor,
    bias: tl.tensor,
    cu_seqlens: tl.tensor,
    seq_lens: tl.tensor,
    tables: tl.tensor,
    num_seqs: tl.tensor,
    table_stride: tl.tensor,
    x_row: tl.tensor,
    out_row: tl.tensor,
    CHANNELS: tl.constexpr,
    TILE: tl.constexpr,
    PAST: tl.constexpr,
    WORDS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
) -> None:
    """Convolve TILE channels of one row of x [T, ...] into out [T, CHANNELS]: silu(y), or C * y where GATED.

    taps: [PAST + 1, CHANNELS], the newest token's last.
    """
    row = tl.program_id(0)
    if row >= tl.load(cu_seqlens + num_seqs):
        return
    sequence = spans.sequence_of_row(row, cu_seqlens, num_seqs)
    first = tl.load(cu_seqlens + sequence)
    query_len = tl.load(cu_seqlens + sequence + 1) - first
    past = tl.load(seq_lens + sequence) - query_len
    age = row - first
    table = tables + sequence.to(tl.int64) * table_stride
    channel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = channel < CHANNELS
    has_past = inside & (channel * 0 + past > 0)

    newest = _input(x, row, channel, inside, x_row, CHANNELS, GATED)
    y = tl.load(taps + PAST * CHANNELS + channel, mask=inside, other=0.0) * newest
    if HAS_BIAS:
        y = y + tl.load(bias + channel, mask=inside, other=0.0)
    for tap in tl.static_range(PAST):
        before = channel * 0 + age - (PAST - tap)
        in_step = inside & (before >= 0)
        in_window = has_past & (before < 0)
        value = _input(x, first + before, channel, in_step, x_row, CHANNELS, GATED)
        place = functions.place_of((PAST + before) * CHANNELS + channel, table, in_window, WORDS)
        kept = tl.load(cache + place, mask=in_window, other=0.0)
        value = tl.where(before >= 0, value, kept)
        y = y + tl.load(taps + tap * CHANNELS + channel, mask=inside, other=0.0) * value
    if GATED:
        gate = x + row.to(tl.int64) * x_row + CHANNELS + channel
        y = y * portable.widen(tl.load(gate, mask=inside, other=0.0))
    else:
        y = functions.silu(y)
    portable.store(out + row.to(tl.int64) * out_row + channel, y, inside)


@triton.jit(do_not_specialize=["table_stride"])
def slide(
    x: tl.tensor,
    cache: tl.tensor,
    cu_seqlens: tl.tensor,
    seq_lens: tl.tensor,
    tables: tl.tensor,
    table_stride: tl.tensor,
    x_row: tl.tensor,
    CHANNELS: tl.constexpr,
    TILE: tl.constexpr,
    PAST: tl.constexpr,
    WORDS: tl.constexpr,
    GATED: tl.constexpr,
) -> None:
    """Advance the window of one sequence past its step, for TILE channels.

    An entry is written only after the later ones were read, by the same thread: each thread has its own channels.
    """
    sequence = tl.program_id(0)
    first = tl.load(cu_seqlens + sequence)
    query_len = tl.load(cu_seqlens + sequence + 1) - first
    if query_len == 0:
        return
    past = tl.load(seq_lens + sequence) - query_len
    table = tables + sequence.to(tl.int64) * table_stride
    channel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = channel < CHANNELS
    has_past = inside & (channel * 0 + past > 0)
    for nth in tl.static_range(PAST):
        before = channel * 0 + query_len - PAST + nth
        in_step = inside & (before >= 0)
        in_window = has_past & (before < 0)
        value = _input(x, first + before, channel, in_step, x_row, CHANNELS, GATED)
        place = functions.place_of((query_len + nth) * CHANNELS + channel, table, in_window, WORDS)
        kept = tl.load(cache + place, mask=in_window, other=0.0)
        value = tl.where(before >= 0, value, kept)
        target = functions.place_of(nth * CHANNELS + channel, table, inside, WORDS)
        tl.store(cache + target, value, mask=inside)
