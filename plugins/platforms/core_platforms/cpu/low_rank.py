"""The binding of the native updates of adapters: their layout in memory, and the table of a layer.

Owns: how A and B are laid out for `native/low_rank.inc.h`, and the checks of the call's tensors. Never does: arithmetic.
Called by: `NativeKernels.low_rank`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core_platforms.cpu.checks import check_rows, check_same, check_table
from core_runtime.contracts import LowRankForm, PackedLowRank
from core_runtime.layers.low_rank import num_segments
from core_runtime.weights.low_rank import LowRank, updates_problem

FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
NAMES = ("float32", "float16", "bfloat16")
RANK_LANES = 16  # ranks side by side in a panel of A
PANEL = 32  # outputs side by side in a panel of B
CACHE_LINE = 64
MOST_SEGMENTS = 8


class NativeUpdate:
    """The updates of one adapter for one layer: all numbers in one block, and the words that describe them.

    nbytes: of both.
    address: of the words, a `LowRankUpdate` of `native/native.h`.
    """

    __slots__ = ("_memory", "_words", "address", "nbytes")

    def __init__(self, updates: Sequence[LowRank]) -> None:
        pieces = [_panels(torch.cat([one.a for one in updates]), RANK_LANES)] if updates else []
        for one in updates:
            vectors = [_padded(vector, PANEL) for vector in (one.gain, one.shift) if vector is not None]
            pieces += [_panels(one.b, PANEL), *vectors]
        self._memory, places = _one_block(pieces)
        self._words = torch.tensor(_words(updates, places), dtype=torch.int64)
        self.address = self._words.data_ptr()
        self.nbytes = self._memory.nbytes + self._words.nbytes


def _panels(matrix: Tensor, lanes: int) -> Tensor:
    """Return a matrix [N, K] as panels of `lanes` rows: [panels, K, lanes], in bfloat16 [panels, ceil(K / 2), lanes, 2]."""
    n, k = matrix.shape
    inputs = 2 if matrix.dtype is torch.bfloat16 else 1
    whole = F.pad(matrix, (0, -k % inputs, 0, -n % lanes))
    panels = whole.view(len(whole) // lanes, lanes, whole.shape[1] // inputs, inputs)
    return panels.transpose(1, 2).contiguous()


def _padded(vector: Tensor, multiple: int) -> Tensor:
    return F.pad(vector, (0, -len(vector) % multiple))


def _one_block(pieces: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Copy tensors into one block, each to the beginning of a cache line; return it with the address of each."""
    lines = sum(-(-piece.nbytes // CACHE_LINE) for piece in pieces)
    memory = torch.empty((lines + 1) * CACHE_LINE, dtype=torch.uint8)
    start = -memory.data_ptr() % CACHE_LINE
    places = []
    for piece in pieces:
        memory[start : start + piece.nbytes] = piece.flatten().view(torch.uint8)
        places.append(memory.data_ptr() + start)
        start += -(-piece.nbytes // CACHE_LINE) * CACHE_LINE
    return memory, places


def _words(updates: Sequence[LowRank], places: Sequence[int]) -> list[int]:
    """Return the fields of a `LowRankUpdate`; places: address of A, then of each part's B and vectors."""
    address = iter(places)
    ranks = sum(one.rank for one in updates)
    panels = sum(-(-one.num_outputs // PANEL) for one in updates)
    words = [next(address, 0), -(-ranks // RANK_LANES), panels, len(updates)]
    offset = 0
    for one in updates:
        b = next(address)
        gain = 0 if one.gain is None else next(address)
        shift = 0 if one.shift is None else next(address)
        scale = torch.tensor(one.scale, dtype=torch.float64).view(torch.int64)
        words += [one.first, one.num_outputs, offset, one.rank, b, gain, shift, int(scale)]
        offset += one.rank
    return words


class NativeLowRank:
    """The resident adapters of one layer; implements the `LowRankTable` contract.

    A row of the table is the address of an update; the kernel reads it in each call.
    """

    __slots__ = ("_held", "_native", "_table", "form", "segments")

    capturable = True

    def __init__(self, native: ModuleType, form: LowRankForm) -> None:
        self._native = native
        self.form = form
        self.segments = num_segments(form.shape[1], min(form.segments, MOST_SEGMENTS))
        self._table = torch.zeros(form.num_rows, dtype=torch.int64)
        self._held: list[NativeUpdate | None] = [None] * form.num_rows

    def pack(self, updates: Sequence[LowRank]) -> NativeUpdate:
        """Lay out the updates of one adapter. Raises ValueError."""
        problem = updates_problem(updates, self.form)
        if problem is not None:
            raise ValueError(problem)
        return NativeUpdate(updates)

    def set(self, row: int, packed: PackedLowRank) -> None:
        """Put an adapter into a row."""
        if not isinstance(packed, NativeUpdate):
            raise TypeError(f"{type(packed).__name__} was packed by another provider")
        self._table[row] = packed.address
        self._held[row] = packed

    def clear(self, row: int) -> None:
        """Empty a row."""
        self._table[row] = 0
        self._held[row] = None

    def __call__(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Apply to each out[t] the updates in row rows[t] of the table for x[t]."""
        outputs, inputs = self.form.shape
        count, stride = check_rows(x, inputs, "x")
        out_rows, out_stride = check_rows(out, outputs, "out")
        check_same(count, out_rows, "out")
        check_same(count, len(rows), "rows")
        which = check_table(rows, torch.int32, "rows")
        table = self._table.data_ptr()
        places = (x.data_ptr(), stride, count, out.data_ptr(), out_stride, which, table, self.form.num_rows)
        self._native.low_rank(*places, inputs, self.segments, FORMATS[self.form.dtype])


def low_rank_reasons(query: KernelQuery) -> list[Reason]:
    """Return the reasons why a layer's adapters are not supported; empty means supported."""
    if query.format and query.format not in NAMES:
        return [Reason("format", ", ".join(NAMES), query.format)]
    return []
