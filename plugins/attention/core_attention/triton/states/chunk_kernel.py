"""The kernels of recurrences in chunks: matrix products over CHUNK tokens of one head.

Owns: the form in chunks of gated delta rules and of mamba2. Never does: compute tokens outside whole chunks (the scan
does). Called by: `recurrence.py`.

A chunk begins at a multiple of CHUNK of a sequence's tokens and is computed here only if a step has all of it. With G
the running sum of the logarithms of decays in the chunk, S the state before it, and rows k, q, u of its tokens:

    out = exp(G) q S' + P u,  P[t, s] = exp(G[t] - G[s]) q[t] k[s] for s <= t
    S after it = exp(G[last]) S + u' (exp(G[last] - G) k)

mamba2 adds u = dt x. The delta rule (Yang et al. 2024, arXiv 2412.06464) adds what a key does not know yet, so that each
u depends on the ones before: u = (I + A)^-1 beta (v - exp(G) k S'), A[t, s] = beta[t] exp(G[t] - G[s]) k[t] k[s] for s < t.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from core_attention.triton import spans
from core_attention.triton.states import functions
from core_attention.triton.states.scan_kernel import Numbers
from core_kernels.triton import portable

CHUNK = tl.constexpr(64)
"""Tokens of a chunk; another number gives other bits."""


class Tokens(NamedTuple):
    """The inputs of a scan with their strides, see `scan_kernel.scan`; `_tokens_of` points them at the rows of a chunk."""

    mixed: tl.tensor
    steps: tl.tensor
    betas: tl.tensor
    mixed_row: tl.tensor
    steps_row: tl.tensor
    betas_row: tl.tensor


@triton.jit
def _tokens_of(tokens: Tokens, begin: tl.tensor) -> Tokens:
    """Return the inputs from a row on; within a chunk, offsets of 32 bits suffice."""
    start = begin.to(tl.int64)
    return Tokens(
        tokens.mixed + start * tokens.mixed_row,
        tokens.steps + start * tokens.steps_row,
        tokens.betas + start * tokens.betas_row,
        tokens.mixed_row,
        tokens.steps_row,
        tokens.betas_row,
    )


@triton.jit
def _product(a: tl.tensor, b: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """Return a @ b of float32 matrices. PRECISION: Triton's `ieee`, or `tf32x3`: three products on matrix units."""
    if portable.INTERPRETED:
        return portable.dot(a, b, tl.zeros([a.shape[0], b.shape[1]], tl.float32))
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _piece(start: tl.tensor, row_stride: tl.tensor, piece: tl.tensor, SCAN: tl.constexpr) -> tl.tensor:
    """Load some columns of a chunk's rows of queries or keys: [CHUNK, SCAN.piece]. start: at the first of all columns."""
    number = piece * SCAN.piece + tl.arange(0, SCAN.piece)[None, :]
    place = start + (tl.arange(0, CHUNK)[:, None] * row_stride + number)
    return tl.load(place, mask=number < SCAN.size, other=0.0)


@triton.jit
def _starts(mixed: tl.tensor, head: tl.tensor, SCAN: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return where the columns begin that read the state and that are written to it: queries and keys, or C and B."""
    start = mixed + head // (SCAN.heads // SCAN.shared) * SCAN.size
    if SCAN.op == "mamba2":
        key = start + SCAN.heads * SCAN.rows
        read = key + SCAN.shared * SCAN.size
    else:
        read = start
        key = start + SCAN.shared * SCAN.size
    return read, key


@triton.jit
def _lengths(start: tl.tensor, row_stride: tl.tensor, eps: tl.tensor, SCAN: tl.constexpr) -> tl.tensor:
    """Return the Euclidean lengths of a chunk's rows: [CHUNK]."""
    squares = tl.zeros([CHUNK], tl.float32)
    for piece in range(SCAN.pieces):
        x = _piece(start, row_stride, piece, SCAN)
        squares += tl.sum(x * x, 1)
    return tl.sqrt_rn(squares + eps)


@triton.jit
def _divided(x: tl.tensor, lengths: tl.tensor, SCAN: tl.constexpr) -> tl.tensor:
    """Return rows divided by their lengths; mamba2 takes them as they are."""
    if SCAN.op != "mamba2":
        x = portable.div(x, tl.zeros_like(x) + lengths[:, None])
    return x


@triton.jit
def _weights(
    tokens: Tokens,
    head: tl.tensor,
    rate: tl.tensor,
    dt_bias: tl.tensor,
    numbers: Numbers,
    SCAN: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the running sums of the logarithms of decays, and the factors of what is added: dt or beta. [CHUNK] each."""
    nth = tl.arange(0, CHUNK)
    step = portable.widen(tl.load(tokens.steps + head + nth * tokens.steps_row))
    own_bias = tl.load(dt_bias + head)
    if SCAN.op == "mamba2":
        step = functions.softplus(step * numbers.dt_scale + own_bias)
        step = tl.minimum(tl.maximum(step, numbers.dt_min), numbers.dt_max)
        factor = step
    else:
        step = functions.softplus(step + own_bias)
        beta = portable.widen(tl.load(tokens.betas + head + nth * tokens.betas_row))
        factor = numbers.beta_scale * portable.sigmoid(beta)
    return tl.cumsum(step * tl.load(rate + head), 0), factor


@triton.jit
def _decays(sums: tl.tensor, is_earlier: tl.tensor) -> tl.tensor:
    """Return exp(G[t] - G[s]) where `is_earlier`, else 0: [CHUNK, CHUNK]."""
    return tl.exp(tl.where(is_earlier, sums[:, None] - sums[None, :], float("-inf")))


@triton.jit
def relate(
    mixed: tl.tensor,
    steps: tl.tensor,
    betas: tl.tensor,
    squares: tl.tensor,
    rate: tl.tensor,
    dt_bias: tl.tensor,
    cu_seqlens: tl.tensor,
    seq_lens: tl.tensor,
    num_seqs: tl.tensor,
    mixed_row: tl.tensor,
    steps_row: tl.tensor,
    betas_row: tl.tensor,
    beta_scale: tl.tensor,
    eps: tl.tensor,
    dt_scale: tl.tensor,
    dt_min: tl.tensor,
    dt_max: tl.tensor,
    SCAN: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Store what follows from the tokens of a chunk alone, program (window, head).

    squares: float32 [windows, heads, `SCAN.room`]: G, dt or beta, the lengths of queries and keys, [CHUNK] each; P, and of
    the delta rule (I + A)^-1 beta, [CHUNK, CHUNK] each.

    A window is CHUNK rows of the step. At most one whole chunk begins in it, and that one has the window's last row.
    """
    head = tl.program_id(1)
    last = tl.program_id(0) * CHUNK + CHUNK - 1
    if last >= tl.load(cu_seqlens + num_seqs):
        return
    sequence = spans.sequence_of_row(last, cu_seqlens, num_seqs)
    first = tl.load(cu_seqlens + sequence)
    stop = tl.load(cu_seqlens + sequence + 1)
    position = tl.load(seq_lens + sequence) - stop + last
    begin = last - position % CHUNK
    if (begin < first) | (begin + CHUNK > stop):
        return
    tokens = _tokens_of(Tokens(mixed, steps, betas, mixed_row, steps_row, betas_row), begin)
    numbers = Numbers(beta_scale, eps, dt_scale, dt_min, dt_max, 0.0)
    nth = tl.arange(0, CHUNK)
    sums, factor = _weights(tokens, head, rate, dt_bias, numbers, SCAN)
    read_start, key_start = _starts(tokens.mixed, head, SCAN)
    read_lengths = sums
    key_lengths = sums
    if SCAN.op != "mamba2":
        read_lengths = _lengths(read_start, mixed_row, eps, SCAN) * (SCAN.size**0.5)
        key_lengths = _lengths(key_start, mixed_row, eps, SCAN)
    vector = _vector(squares, begin, head, SCAN)
    tl.store(vector, sums)
    tl.store(vector + CHUNK, factor)
    tl.store(vector + 2 * CHUNK, read_lengths)
    tl.store(vector + 3 * CHUNK, key_lengths)
    place = _square(squares, begin, head, SCAN)
    among = tl.zeros([CHUNK, CHUNK], tl.float32)
    for piece in range(SCAN.pieces):
        read = _divided(_piece(read_start, mixed_row, piece, SCAN), read_lengths, SCAN)
        key = _divided(_piece(key_start, mixed_row, piece, SCAN), key_lengths, SCAN)
        among += _product(read, tl.trans(key), PRECISION)
    tl.store(place, among * _decays(sums, nth[None, :] <= nth[:, None]))
    if SCAN.op != "mamba2":
        among = tl.zeros([CHUNK, CHUNK], tl.float32)
        for piece in range(SCAN.pieces):
            key = _divided(_piece(key_start, mixed_row, piece, SCAN), key_lengths, SCAN)
            among += _product(key, tl.trans(key), PRECISION)
        among = among * _decays(sums, nth[None, :] < nth[:, None]) * factor[:, None]
        inverse = (nth[:, None] == nth[None, :]).to(tl.float32)
        for column in range(0, CHUNK - 1):
            factors = tl.sum(tl.where(nth[None, :] == column, among, 0.0), 1)
            done = tl.sum(tl.where(nth[:, None] == column, inverse, 0.0), 0)
            inverse = inverse - factors[:, None] * done[None, :]
        tl.store(place + CHUNK * CHUNK, inverse * factor[None, :])


@triton.jit
def _room(squares: tl.tensor, begin: tl.tensor, head: tl.tensor, SCAN: tl.constexpr) -> tl.tensor:
    """Return where the room of the chunk lies that begins in a row."""
    number = (begin // CHUNK).to(tl.int64) * SCAN.heads + head
    return squares + number * SCAN.room


@triton.jit
def _square(squares: tl.tensor, begin: tl.tensor, head: tl.tensor, SCAN: tl.constexpr) -> tl.tensor:
    """Return where a chunk's first matrix lies: [CHUNK, CHUNK]; the second one follows."""
    nth = tl.arange(0, CHUNK)
    return _room(squares, begin, head, SCAN) + 4 * CHUNK + nth[:, None] * CHUNK + nth[None, :]


@triton.jit
def _vector(squares: tl.tensor, begin: tl.tensor, head: tl.tensor, SCAN: tl.constexpr) -> tl.tensor:
    """Return where a chunk's first vector lies: [CHUNK]; three follow."""
    return _room(squares, begin, head, SCAN) + tl.arange(0, CHUNK)


@triton.jit
def _state_piece(
    cache: tl.tensor,
    table: tl.tensor,
    head: tl.tensor,
    row: tl.tensor,
    piece: tl.tensor,
    past: tl.tensor,
    SCAN: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Load some columns of some rows of a head's state, zeros if no token is past; and return where they lie, and which
    there are: [rows, SCAN.piece] each.
    """
    number = piece * SCAN.piece + tl.arange(0, SCAN.piece)
    inside = (row < SCAN.rows)[:, None] & (number < SCAN.size)[None, :]
    element = SCAN.base + (head * SCAN.rows + row)[:, None] * SCAN.size + number[None, :]
    place = cache + functions.place_of(element, table, inside, SCAN.words)
    return tl.load(place, mask=inside & (element * 0 + past > 0), other=0.0), place, inside


@triton.jit(do_not_specialize=["table_stride"])
def advance(
    mixed: tl.tensor,
    squares: tl.tensor,
    out: tl.tensor,
    cache: tl.tensor,
    cu_seqlens: tl.tensor,
    seq_lens: tl.tensor,
    tables: tl.tensor,
    table_stride: tl.tensor,
    mixed_row: tl.tensor,
    out_row: tl.tensor,
    SCAN: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Compute the whole chunks of program (sequence, head, part of the rows of its state), and advance the state, which
    stays in the cache: few columns of it, of queries and of keys are in registers at a time.
    """
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - first
    past = tl.load(seq_lens + sequence) - length
    before, count = functions.whole_chunks(past, length, CHUNK)
    if count == 0:
        return
    table = tables + sequence.to(tl.int64) * table_stride
    PART: tl.constexpr = SCAN.part
    row = tl.program_id(2) * PART + tl.arange(0, PART)
    row_inside = (row < SCAN.rows)[None, :]
    offset: tl.constexpr = 0 if SCAN.op == "mamba2" else 2 * SCAN.shared * SCAN.size
    nth = tl.arange(0, CHUNK)
    for chunk in range(count):
        begin = first + before + chunk * CHUNK
        from_mixed = mixed + begin.to(tl.int64) * mixed_row
        read_start, key_start = _starts(from_mixed, head, SCAN)
        vector = _vector(squares, begin, head, SCAN)
        sums = tl.load(vector)
        decay = tl.exp(sums)[:, None]
        done = past + before + chunk
        known = tl.zeros([CHUNK, PART], tl.float32)
        y = tl.zeros([CHUNK, PART], tl.float32)
        for piece in range(SCAN.pieces):
            state, _, _ = _state_piece(cache, table, head, row, piece, done, SCAN)
            read = _divided(_piece(read_start, mixed_row, piece, SCAN), tl.load(vector + 2 * CHUNK), SCAN)
            y += _product(read, tl.trans(state), PRECISION)
            if SCAN.op != "mamba2":
                key = _divided(_piece(key_start, mixed_row, piece, SCAN), tl.load(vector + 3 * CHUNK), SCAN)
                known += _product(key, tl.trans(state), PRECISION)
        values = from_mixed + (offset + head * SCAN.rows) + (nth[:, None] * mixed_row + row[None, :])
        added = tl.load(values, mask=row_inside, other=0.0)
        square = _square(squares, begin, head, SCAN)
        if SCAN.op == "mamba2":
            added = added * tl.load(vector + CHUNK)[:, None]
        else:
            added = _product(tl.load(square + CHUNK * CHUNK), added - decay * known, PRECISION)
        y = decay * y + _product(tl.load(square), added, PRECISION)
        written = out + begin.to(tl.int64) * out_row + head * SCAN.rows + (nth[:, None] * out_row + row[None, :])
        tl.store(written, y, mask=row_inside)
        whole = tl.sum(tl.where(nth == CHUNK - 1, sums, 0.0), 0)
        kept = tl.exp(whole - sums)[:, None]
        for piece in range(SCAN.pieces):
            state, place, inside = _state_piece(cache, table, head, row, piece, done, SCAN)
            key = _divided(_piece(key_start, mixed_row, piece, SCAN), tl.load(vector + 3 * CHUNK), SCAN) * kept
            state = state * tl.exp(whole) + _product(tl.trans(added), key, PRECISION)
            tl.debug_barrier()  # all threads have read what other threads now overwrite
            tl.store(place, state, mask=inside)
        tl.debug_barrier()  # the next chunk reads what other threads have written
