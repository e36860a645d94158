"""The kernel of the recurrences: one token after the other, for some rows of one head's state.

Owns: the update of a state by each op. Never does: convolve, norm or gate. Called by: `recurrence.py`.

OP is `mamba1`, `mamba2`, `gated_delta` or `kda`; a state is [HEADS, ROWS, SIZE], behind the window of the convolution.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_plugins.attention.triton.states import functions
from core_plugins.kernels.triton import portable


@triton.jit
def _unit(x: tl.tensor, eps: tl.tensor) -> tl.tensor:
    """x divided by its length."""
    length = tl.sqrt_rn(tl.sum(x * x, 0) + eps)
    return portable.div(x, tl.zeros_like(x) + length)


@triton.jit
def _mamba1(
    state: tl.tensor,
    from_mixed: tl.tensor,
    from_steps: tl.tensor,
    from_selected: tl.tensor,
    rates: tl.tensor,
    row: tl.tensor,
    number: tl.tensor,
    row_inside: tl.tensor,
    inside_size: tl.tensor,
    SIZE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The state behind a token, and by what it is read. from_...: at the token."""
    x = tl.load(from_mixed + row, mask=row_inside, other=0.0)
    dt = tl.load(from_steps + row, mask=row_inside, other=0.0)
    added = tl.load(from_selected + number, mask=inside_size, other=0.0)
    read = tl.load(from_selected + SIZE + number, mask=inside_size, other=0.0)
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
    dt_scale: tl.tensor,
    dt_min: tl.tensor,
    dt_max: tl.tensor,
    row_inside: tl.tensor,
    inside_size: tl.tensor,
    width: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The same. own: of the head's rows. from_shared: of the group's B. step: of the head's dt."""
    x = tl.load(own, mask=row_inside, other=0.0)
    added = tl.load(from_shared, mask=inside_size, other=0.0)
    read = tl.load(from_shared + width, mask=inside_size, other=0.0)
    dt = portable.widen(tl.load(step)) * dt_scale + own_bias
    dt = tl.minimum(tl.maximum(functions.softplus(dt), dt_min), dt_max)
    state = state * tl.exp(dt * own_rate) + (x * dt)[:, None] * added[None, :]
    return state, read


@triton.jit
def _delta(
    state: tl.tensor,
    decay: tl.tensor,
    from_shared: tl.tensor,
    own: tl.tensor,
    beta: tl.tensor,
    beta_scale: tl.tensor,
    eps: tl.tensor,
    row_inside: tl.tensor,
    inside_size: tl.tensor,
    SIZE: tl.constexpr,
    width: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The same. decay: of each number, or one. from_shared: of the query's numbers. own: of the head's values. beta: its b."""
    read = tl.load(from_shared, mask=inside_size, other=0.0)
    key = tl.load(from_shared + width, mask=inside_size, other=0.0)
    value = tl.load(own, mask=row_inside, other=0.0)
    read = _unit(read, eps) * (SIZE**-0.5)
    key = _unit(key, eps)
    opened = beta_scale * portable.sigmoid(portable.widen(tl.load(beta)))
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
    HAS_FLOOR: tl.constexpr,
) -> tl.tensor:
    """Of each number of a state of kda, [1, PADDED]. steps: of the head's f."""
    f = portable.widen(tl.load(steps, mask=inside_size, other=0.0))
    if HAS_FLOOR:
        decay = tl.exp(decay_floor * portable.sigmoid(own_rate * (f + bias)))
    else:
        decay = tl.exp(-own_rate * functions.softplus(f + bias))
    return decay[None, :]


@triton.jit
def _head_decay(step: tl.tensor, own_rate: tl.tensor, own_bias: tl.tensor) -> tl.tensor:
    """Of a head's whole state. step: of its a."""
    a = portable.widen(tl.load(step))
    return tl.exp(own_rate * functions.softplus(a + own_bias))


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
    OP: tl.constexpr,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    BASE: tl.constexpr,
    WORDS: tl.constexpr,
    HAS_FLOOR: tl.constexpr,
) -> None:
    """Program (sequence, head, tile of rows); out float32 [T, HEADS * ROWS].

    mixed: float32 [T, ...], what the convolution gave. steps: dt of a row (mamba1) or head (mamba2), a of a head, or f.
    selected: B and C of mamba1. betas: b of a head. rate: -exp(A_log), of kda exp(A_log).
    SHARED: heads of keys, or groups of B and C. BASE: numbers of the window. WORDS: numbers of a block.
    """
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(cu_seqlens + sequence)
    stop = tl.load(cu_seqlens + sequence + 1)
    if first == stop:
        return
    past = tl.load(seq_lens + sequence) - (stop - first)
    table = tables + sequence.to(tl.int64) * table_stride
    row = tl.program_id(2) * TILE + tl.arange(0, TILE)
    number = tl.arange(0, PADDED)
    row_inside = row < ROWS
    inside_size = number < SIZE
    inside = row_inside[:, None] & inside_size[None, :]
    element = BASE + (head * ROWS + row)[:, None] * SIZE + number[None, :]
    place = functions.place_of(element, table, inside, WORDS)
    has_past = inside & (element * 0 + past > 0)
    state = tl.load(cache + place, mask=has_past, other=0.0)

    shared = head // (HEADS // SHARED)
    width: tl.constexpr = SHARED * SIZE
    if OP == "mamba1":
        rates = tl.load(rate + row[:, None] * SIZE + number[None, :], mask=inside, other=0.0)
    else:
        own_rate = tl.load(rate + head)
    if OP == "kda":
        bias = tl.load(dt_bias + head * SIZE + number, mask=inside_size, other=0.0)
    elif OP != "mamba1":
        own_bias = tl.load(dt_bias + head)

    for nth in range(0, stop - first):
        at = first.to(tl.int64) + nth
        from_mixed = mixed + at * mixed_row
        from_steps = steps + at * steps_row
        if OP == "mamba1":
            from_selected = selected + at * selected_row
            state, read = _mamba1(
                state, from_mixed, from_steps, from_selected, rates, row, number, row_inside, inside_size, SIZE
            )
        elif OP == "mamba2":
            own = from_mixed + head * ROWS + row
            from_shared = from_mixed + HEADS * ROWS + shared * SIZE + number
            state, read = _mamba2(
                state,
                own,
                from_shared,
                from_steps + head,
                own_rate,
                own_bias,
                dt_scale,
                dt_min,
                dt_max,
                row_inside,
                inside_size,
                width,
            )
        else:
            own = from_mixed + 2 * width + head * ROWS + row
            from_shared = from_mixed + shared * SIZE + number
            from_beta = betas + at * betas_row + head
            if OP == "kda":
                step = from_steps + head * SIZE + number
                decay = _channel_decay(step, inside_size, own_rate, bias, decay_floor, HAS_FLOOR)
            else:
                decay = _head_decay(from_steps + head, own_rate, own_bias)
            state, read = _delta(
                state, decay, from_shared, own, from_beta, beta_scale, eps, row_inside, inside_size, SIZE, width
            )
        y = tl.sum(state * read[None, :], 1)
        tl.store(out + at * out_row + head * ROWS + row, y, mask=row_inside)
    tl.store(cache + place, state, mask=inside)
