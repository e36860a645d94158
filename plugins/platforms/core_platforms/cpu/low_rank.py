"""The binding of the native updates of adapters: their layout in memory, and the table of a layer.

Owns: how A and B are laid out for `native/low_rank.inc.h`, and the checks of the call's tensors. Never does: arithmetic.
Called by: `NativeKernels.low_rank`.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref
from collections.abc import Sequence
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core_platforms.cpu.checks import check_rows, check_same, check_table
from core_platforms.cpu.native_linear import NativeLinear
from core_runtime.contracts import LinearKernel, LowRankForm
from core_runtime.layers.low_rank_rows import AddressRows
from core_runtime.weights.low_rank import LowRank

FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
NAMES = ("float32", "float16", "bfloat16")
RANK_LANES = 16  # ranks side by side in a panel of A
PANEL = 32  # outputs side by side in a panel of B
CACHE_LINE = 64
HUGE_PAGE = 2 << 20
REGION = 8 << 20  # bytes that are mapped at once
LEAST_LEFT = 16 << 10  # bytes of a region that are worth keeping for another update
MOST_SEGMENTS = 8
HEAD_WORDS, PART_WORDS = 3, 8  # of an update and of each of its parts


class Arena:
    """Memory for updates in huge pages: a step reads all of an adapter's updates, one after the other.

    A region is freed when the last update in it is dropped. What is left of it is used for later updates.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[tuple[weakref.ref[mmap.mmap], int, int]] = []

    def take(self, nbytes: int) -> tuple[mmap.mmap, Tensor]:
        """Return uint8 [nbytes] that begins at a cache line, and the region, which must outlive its use.

        Any thread may call it.
        """
        size = -(-nbytes // CACHE_LINE) * CACHE_LINE
        with self._lock:
            memory, start, end = self._room(size)
            if end - start - size >= LEAST_LEFT:
                self._open.append((weakref.ref(memory), start + size, end))
        return memory, torch.frombuffer(memory, dtype=torch.uint8, count=nbytes, offset=start)

    def _room(self, size: int) -> tuple[mmap.mmap, int, int]:
        """Take the open region with the least room that suffices off the list; map one if there is none."""
        self._open = [entry for entry in self._open if entry[0]() is not None]
        for entry in sorted(self._open, key=lambda entry: entry[2] - entry[1]):
            memory = entry[0]()
            if memory is not None and entry[2] - entry[1] >= size:
                self._open.remove(entry)
                return memory, entry[1], entry[2]
        return _mapped(-(-size // REGION) * REGION)


def _mapped(nbytes: int) -> tuple[mmap.mmap, int, int]:
    """Map whole huge pages where the system has them; return the memory with begin and end of them."""
    memory = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # on a kernel without huge pages, small ones do
            memory.madvise(mmap.MADV_HUGEPAGE)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % HUGE_PAGE
    return memory, start, start + nbytes


class NativeUpdate:
    """The updates of one adapter for one layer: one block of the words that describe them, and all numbers.

    Nothing of it, not even a tensor, is in the allocator's heap, whose pages could not be returned then.

    address: of the words, a `LowRankUpdate` of `native/native.h`.
    """

    __slots__ = ("_memory", "address", "nbytes")

    def __init__(self, updates: Sequence[LowRank], arena: Arena) -> None:
        pieces = [torch.zeros(HEAD_WORDS + PART_WORDS * len(updates), dtype=torch.int64)]
        if updates:
            pieces.append(_panels(torch.cat([one.a for one in updates]), RANK_LANES))
        for one in updates:
            before = one.first % PANEL  # panels are those of the layer
            vectors = [_padded(vector, before) for vector in (one.gain, one.shift) if vector is not None]
            pieces += [_panels(F.pad(one.b, (0, 0, before, 0)), PANEL), *vectors]
        self._memory, block, places = _one_block(pieces, arena)
        block[: pieces[0].nbytes].view(torch.int64).copy_(torch.tensor(_words(updates, places[1:])))
        self.address = places[0]
        self.nbytes = block.nbytes


def _panels(matrix: Tensor, lanes: int) -> Tensor:
    """Return a matrix [N, K] as panels of `lanes` rows: [panels, K, lanes], in bfloat16 [panels, ceil(K / 2), lanes, 2]."""
    n, k = matrix.shape
    inputs = 2 if matrix.dtype is torch.bfloat16 else 1
    whole = F.pad(matrix, (0, -k % inputs, 0, -n % lanes))
    panels = whole.view(len(whole) // lanes, lanes, whole.shape[1] // inputs, inputs)
    return panels.transpose(1, 2).contiguous()


def _padded(vector: Tensor, before: int) -> Tensor:
    """Return a vector with some numbers before it, and whole panels of them."""
    return F.pad(vector, (before, -(before + len(vector)) % PANEL))


def _one_block(pieces: Sequence[Tensor], arena: Arena) -> tuple[mmap.mmap, Tensor, list[int]]:
    """Copy tensors into one block, each to the beginning of a cache line; return region, block and the address of each."""
    starts = []
    end = 0
    for piece in pieces:
        starts.append(end)
        end += -(-piece.nbytes // CACHE_LINE) * CACHE_LINE
    memory, block = arena.take(end)
    for start, piece in zip(starts, pieces, strict=True):
        block[start : start + piece.nbytes] = piece.flatten().view(torch.uint8)
    return memory, block, [block.data_ptr() + start for start in starts]


def _words(updates: Sequence[LowRank], places: Sequence[int]) -> list[int]:
    """Return the fields of a `LowRankUpdate`; places: address of A, then of each part's B and vectors."""
    address = iter(places)
    ranks = sum(one.rank for one in updates)
    words = [next(address, 0), -(-ranks // RANK_LANES), len(updates)]
    offset = 0
    for one in updates:
        b = next(address)
        gain = 0 if one.gain is None else next(address)
        shift = 0 if one.shift is None else next(address)
        scale = torch.tensor(one.scale, dtype=torch.float64).view(torch.int64)
        words += [one.first, one.num_outputs, offset, one.rank, b, gain, shift, int(scale)]
        offset += one.rank
    return words


class NativeLowRank(AddressRows[NativeUpdate]):
    """The resident adapters of one layer; implements the `LowRankTable` contract. The kernel reads the rows in each call."""

    __slots__ = ("_arena", "_native")

    capturable = True

    def __init__(self, native: ModuleType, form: LowRankForm, arena: Arena) -> None:
        super().__init__(form, NativeUpdate, MOST_SEGMENTS)
        self._native = native
        self._arena = arena

    def laid_out(self, updates: Sequence[LowRank]) -> NativeUpdate:
        """Copy updates into the arena."""
        return NativeUpdate(updates, self._arena)

    def __call__(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Apply to each out[t] the updates in row rows[t] of the table for x[t]."""
        outputs, inputs = self.form.shape
        count, stride = check_rows(x, inputs, "x")
        out_rows, out_stride = check_rows(out, outputs, "out")
        check_same(count, out_rows, "out")
        places = (x.data_ptr(), stride, count, out.data_ptr(), out_stride, outputs, inputs)
        self._native.low_rank(*places, *self.arguments(rows, count))

    def joined(self, linear: LinearKernel) -> NativeJoined | None:
        """Return the layer's product and the updates after it in one call; None for another provider's product."""
        if not isinstance(linear, NativeLinear) or linear.shape != self.form.shape:
            return None
        return NativeJoined(self._native, linear, self)

    def arguments(self, rows: Tensor, count: int) -> tuple[int, ...]:
        """Return rows and table as the extension reads them. Raises ValueError."""
        check_same(count, len(rows), "rows")
        which = check_table(rows, torch.int32, "rows")
        return which, self.table.data_ptr(), self.form.num_rows, self.segments, FORMATS[self.form.dtype]


class NativeJoined:
    """A product and the updates of adapters after it in one parallel region; implements the `JoinedLinear` contract."""

    __slots__ = ("_linear", "_run", "_table")

    capturable = True

    def __init__(self, native: ModuleType, linear: NativeLinear, table: NativeLowRank) -> None:
        self._run = native.linear_joined
        self._linear = linear
        self._table = table

    def __call__(self, x: Tensor, rows: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`; then apply the updates."""
        outputs, inputs = self._linear.shape
        count, stride = check_rows(x, inputs, "x")
        out_rows, out_stride = check_rows(out, outputs, "out")
        check_same(count, out_rows, "out")
        table = self._table.arguments(rows, count)
        self._run(self._linear.packed, x.data_ptr(), stride, count, out.data_ptr(), out_stride, accumulate, *table)


def low_rank_reasons(query: KernelQuery) -> list[Reason]:
    """Return the reasons why a layer's adapters are not supported; empty means supported."""
    if query.format and query.format not in NAMES:
        return [Reason("format", ", ".join(NAMES), query.format)]
    return []
