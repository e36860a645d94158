"""The kernel of the recurrences: one token after another, for some rows of one head's state.

Owns: the update of a state by each op. Never does: convolve, norm or gate. Called by: `recurrence.py`.

SCAN is a `Recurrence`; a state is [heads, rows, size], stored after the convolution's window.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from core_attention.triton.states import functions
from core_kernels.triton import portable


class Part(NamedTuple):
    """The part of a head's state that a program handles: rows [TILE] and numbers [PADDED], with masks for valid ones."""

    row: tl.tensor
    number: tl.tensor
    row_inside: tl.tensor
    inside_size: tl.tensor


class Numbers(NamedTuple):
    """Scalar arguments of a layer, as in `Scan`."""

    beta_scale: tl.tensor
    eps: tl.tensor
    dt_scale: tl.tensor
    dt_min: tl.tensor
    dt_max: tl.tensor
    decay_floor: tl.tensor


@triton.jit
def _unit(x: tl.tensor, eps: tl.tensor) -> tl.tensor:
    """Return x divided by its Euclidean length."""
    length = tl.sqrt_rn(tl.sum(x * x, 0) + eps)
    return portable.div(x, tl.zeros_like(x) + length)


@triton.jit
def _mamba1(
    state: tl.tensor,
    from_mixed: tl.tensor,
    from_steps: tl.tensor,
    from_selected: tl.tensor,
    rates: tl.tensor,
    part: Part,
    SIZE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the state after a token, and the vector that reads it. from_...: pointers at the token."""
    x = tl.load(from_mixed + part.row, mask=part.row_inside, other=0.0)
    dt = tl.load(from_steps + part.row, mask=part.row_inside, other=0.0)
    added = tl.load(from_selected + part.number, mask=part.inside_size, other=0.0)
    read = tl.load(from_selected + SIZE + part.number, mask=part.inside_size, other=0.0)
    state = state * tl.exp(dt[:, None] * rates) + (dt * x)[:, None] * added[None, :]
    return state, read


@triton.jit
def _mamba2(
    state: tl.tensor,
    own: tl.tensor,
    from_shared: tl.tensor,
    step: tl.tensor,
    own_rate: tl.tensor,
    own_bias: tl.tensor,
    numbers: Numbers,
    part: Part,
    width: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the state after a token, and the vector that reads it. own: at the head's rows. from_shared: at the
    group's B. step: at the head's dt.
    """
    x = tl.load(own, mask=part.row_inside, other=0.0)
    added = tl.load(from_shared, mask=part.inside_size, other=0.0)
    read = tl.load(from_shared + width, mask=part.inside_size, other=0.0)
    dt = portable.widen(tl.load(step)) * numbers.dt_scale + own_bias
    dt = tl.minimum(tl.maximum(functions.softplus(dt), numbers.dt_min), numbers.dt_max)
    state = state * tl.exp(dt * own_rate) + (x * dt)[:, None] * added[None, :]
    return state, read


@triton.jit
def _delta(
    state: tl.tensor,
    decay: tl.tensor,
    from_shared: tl.tensor,
    own: tl.tensor,
    beta: tl.tensor,
    numbers: Numbers,
    part: Part,
    SIZE: tl.constexpr,
    width: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the state after a token, and the vector that reads it. decay: per number, or one. from_shared: at the
    query. own: at the head's values. beta: the token's b.
    """
    read = tl.load(from_shared, mask=part.inside_size, other=0.0)
    key = tl.load(from_shared + width, mask=part.inside_size, other=0.0)
    value = tl.load(own, mask=part.row_inside, other=0.0)
    read = _unit(read, numbers.eps) * (SIZE**-0.5)
    key = _unit(key, numbers.eps)
    opened = numbers.beta_scale * portable.sigmoid(portable.widen(tl.load(beta)))
    state = state * decay
    known = tl.sum(state * key[None, :], 1)
    state = state + (opened * (value - known))[:, None] * key[None, :]
    return state, read


@triton.jit
def _channel_decay(
    steps: tl.tensor,
    inside_size: tl.tensor,
    own_rate: tl.tensor,
    bias: tl.tensor,
    decay_floor: tl.tensor,
    SCAN: tl.constexpr,
) -> tl.tensor:
    """Return kda's decay of each number of a state, [1, PADDED]. steps: at the head's f."""
    f = portable.widen(tl.load(steps, mask=inside_size, other=0.0))
    if SCAN.has_floor:
        decay = tl.exp(decay_floor * portable.sigmoid(own_rate * (f + bias)))
    else:
        decay = tl.exp(-own_rate * functions.softplus(f + bias))
    return decay[None, :]


@triton.jit
def _head_decay(step: tl.tensor, own_rate: tl.tensor, own_bias: tl.tensor) -> tl.tensor:
    """Return the decay of a head's whole state. step: at the head's a."""
    a = portable.widen(tl.load(step))
    return tl.exp(own_rate * functions.softplus(a + own_bias))


@triton.jit
def _tables(
    rate: tl.tensor, dt_bias: tl.tensor, head: tl.tensor, part: Part, SCAN: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Load decay rates (per number for mamba1, otherwise per head) and the bias of dt, which mamba1 does not have."""
    if SCAN.op == "mamba1":
        inside = part.row_inside[:, None] & part.inside_size[None, :]
        own_rate = tl.load(rate + part.row[:, None] * SCAN.size + part.number[None, :], mask=inside, other=0.0)
        own_bias = own_rate
    else:
        own_rate = tl.load(rate + head)
        if SCAN.op == "kda":
            own_bias = tl.load(dt_bias + head * SCAN.size + part.number, mask=part.inside_size, other=0.0)
        else:
            own_bias = tl.load(dt_bias + head)
    return own_rate, own_bias


@triton.jit
def _stepped(
    state: tl.tensor,
    from_mixed: tl.tensor,
    from_steps: tl.tensor,
    from_selected: tl.tensor,
    from_betas: tl.tensor,
    head: tl.tensor,
    own_rate: tl.tensor,
    own_bias: tl.tensor,
    numbers: Numbers,
    part: Part,
    SCAN: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the state after a token, and the vector that reads it, for any op. from_...: pointers at the token."""
    width: tl.constexpr = SCAN.shared * SCAN.size
    shared = head // (SCAN.heads // SCAN.shared)
    if SCAN.op == "mamba1":
        state, read = _mamba1(state, from_mixed, from_steps, from_selected, own_rate, part, SCAN.size)
    elif SCAN.op == "mamba2":
        own = from_mixed + head * SCAN.rows + part.row
        from_shared = from_mixed + SCAN.heads * SCAN.rows + shared * SCAN.size + part.number
        state, read = _mamba2(state, own, from_shared, from_steps + head, own_rate, own_bias, numbers, part, width)
    else:
        own = from_mixed + 2 * width + head * SCAN.rows + part.row
        from_shared = from_mixed + shared * SCAN.size + part.number
        from_beta = from_betas + head
        if SCAN.op == "kda":
            step = from_steps + head * SCAN.size + part.number
            decay = _channel_decay(step, part.inside_size, own_rate, own_bias, numbers.decay_floor, SCAN)
        else:
            decay = _head_decay(from_steps + head, own_rate, own_bias)
        state, read = _delta(state, decay, from_shared, own, from_beta, numbers, part, SCAN.size, width)
    return state, read


@triton.jit(do_not_specialize=["table_stride"])
def scan(
    mixed: tl.tensor,
    steps: tl.tensor,
    selected: tl.tensor,
    betas: tl.tensor,
    out: tl.tensor,
    cache: tl.tensor,
    rate: tl.tensor,
    dt_bias: tl.tensor,
    cu_seqlens: tl.tensor,
    seq_lens: tl.tensor,
    tables: tl.tensor,
    table_stride: tl.tensor,
    mixed_row: tl.tensor,
    steps_row: tl.tensor,
    selected_row: tl.tensor,
    betas_row: tl.tensor,
    out_row: tl.tensor,
    beta_scale: tl.tensor,
    eps: tl.tensor,
    dt_scale: tl.tensor,
    dt_min: tl.tensor,
    dt_max: tl.tensor,
    decay_floor: tl.tensor,
    SCAN: tl.constexpr,
    PART: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    """Scan the tokens of program (sequence, head, tile of rows) into out float32 [T, heads * rows].

    PART: `all` tokens, or those `before` or `after` the step's whole chunks of CHUNK; without such chunks, all are before.

    mixed: float32 [T, ...], the convolution's output. steps: dt of a row (mamba1) or head (mamba2), a of a head, or f.
    selected: B and C of mamba1. betas: b of a head. rate: -exp(A_log), of kda exp(A_log).
    """
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(cu_seqlens + sequence)
    stop = tl.load(cu_seqlens + sequence + 1)
    if first == stop:
        return
    past = tl.load(seq_lens + sequence) - (stop - first)
    if PART != "all":
        before, count = functions.whole_chunks(past, stop - first, CHUNK)
        if PART == "before":
            stop = tl.where(count > 0, first + before, stop)
        else:
            begin = tl.where(count > 0, before + count * CHUNK, stop - first)
            first += begin
            past += begin
        if first == stop:
            return
    table = tables + sequence.to(tl.int64) * table_stride
    row = tl.program_id(2) * SCAN.tile + tl.arange(0, SCAN.tile)
    number = tl.arange(0, SCAN.padded)
    row_inside = row < SCAN.rows
    inside_size = number < SCAN.size
    inside = row_inside[:, None] & inside_size[None, :]
    element = SCAN.base + (head * SCAN.rows + row)[:, None] * SCAN.size + number[None, :]
    place = functions.place_of(element, table, inside, SCAN.words)
    has_past = inside & (element * 0 + past > 0)
    state = tl.load(cache + place, mask=has_past, other=0.0)

    part = Part(row, number, row_inside, inside_size)
    numbers = Numbers(beta_scale, eps, dt_scale, dt_min, dt_max, decay_floor)
    own_rate, own_bias = _tables(rate, dt_bias, head, part, SCAN)

    for nth in range(0, stop - first):
        at = first.to(tl.int64) + nth
        from_mixed = mixed + at * mixed_row
        from_steps = steps + at * steps_row
        from_selected = selected + at * selected_row
        from_betas = betas + at * betas_row
        state, read = _stepped(
            state, from_mixed, from_steps, from_selected, from_betas, head, own_rate, own_bias, numbers, part, SCAN
        )
        y = tl.sum(state * read[None, :], 1)
        tl.store(out + at * out_row + head * SCAN.rows + row, y, mask=row_inside)
    tl.store(cache + place, state, mask=inside)
