"""The binding of the native updates of adapters: their layout in memory, and the table of a layer.

Owns: how A and B are laid out for `native/low_rank.inc.h`, and the checks of the call's tensors. Never does: arithmetic.
Called by: `NativeKernels.low_rank`.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import threading
import weakref
from collections.abc import Sequence
from itertools import accumulate
from types import ModuleType

import torch
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
    """Memory for updates, in huge pages after a while: a step reads all of an adapter's updates, one after the other.

    A region is freed when the last update in it is dropped. What is left of it is used for later updates.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[tuple[weakref.ref[mmap.mmap], int, int]] = []
        self._full: list[weakref.ref[mmap.mmap]] = []

    def take(self, nbytes: int) -> tuple[mmap.mmap, Tensor]:
        """Return zeros, uint8 [nbytes], that begin at a cache line, and the region, which must outlive their use.

        No byte of a region is given twice, so it is as the system mapped it. Any thread may call this.
        """
        size = -(-nbytes // CACHE_LINE) * CACHE_LINE
        with self._lock:
            memory, start, end = self._room(size)
            if end - start - size >= LEAST_LEFT:
                self._open.append((weakref.ref(memory), start + size, end))
            else:
                self._full.append(weakref.ref(memory))
        return memory, torch.frombuffer(memory, dtype=torch.uint8, count=nbytes, offset=start)

    def _room(self, size: int) -> tuple[mmap.mmap, int, int]:
        """Take the open region with the least room that suffices off the list; map one if there is none."""
        self._open = [entry for entry in self._open if entry[0]() is not None]
        for entry in sorted(self._open, key=lambda entry: entry[2] - entry[1]):
            memory = entry[0]()
            if memory is not None and entry[2] - entry[1] >= size:
                self._open.remove(entry)
                return memory, entry[1], entry[2]
        self._let_full_ones_be_huge()
        return _mapped(-(-size // REGION) * REGION)

    def _let_full_ones_be_huge(self) -> None:
        """Let the system put full regions into huge pages in its own time.

        Writing to memory that asks for huge pages makes them at once. Where memory is fragmented that takes 10 ms each,
        210 ms for an adapter of 39 MB instead of 10, and steps wait for the address space meanwhile.
        """
        for entry in self._full:
            memory = entry()
            if memory is not None and hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # on a kernel without huge pages, small ones do
                    memory.madvise(mmap.MADV_HUGEPAGE)
        self._full.clear()


def _mapped(nbytes: int) -> tuple[mmap.mmap, int, int]:
    """Map memory that whole huge pages can replace; return it with begin and end of them."""
    memory = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % HUGE_PAGE
    return memory, start, start + nbytes


class NativeUpdate:
    """The updates of one adapter for one layer: one block of the words that describe them, and all numbers.

    Nothing of it, not even a tensor, is in the allocator's heap, whose pages could not be returned then.

    address: of the words, a `LowRankUpdate` of `native/native.h`.
    """

    __slots__ = ("_memory", "address", "nbytes")

    def __init__(self, native: ModuleType, updates: Sequence[LowRank], arena: Arena) -> None:
        ranks = sum(one.rank for one in updates)
        sizes = [8 * (HEAD_WORDS + PART_WORDS * len(updates))]
        sizes.append(_panels_bytes(updates[0].a, ranks, RANK_LANES) if updates else 0)
        for one in updates:
            sizes.append(_panels_bytes(one.b, one.first % PANEL + one.num_outputs, PANEL))
            sizes += [0 if vector is None else 4 * _whole(one) for vector in (one.gain, one.shift)]
        starts = list(accumulate((-(-size // CACHE_LINE) * CACHE_LINE for size in sizes), initial=0))
        self._memory, block = arena.take(starts[-1])
        self.address, self.nbytes = block.data_ptr(), block.nbytes
        a = self.address + starts[1]
        words = [a if updates else 0, -(-ranks // RANK_LANES), len(updates)]
        offset = 0
        for number, one in enumerate(updates):
            before = one.first % PANEL  # panels are those of the layer
            b, *vectors = starts[2 + 3 * number : 5 + 3 * number]
            _lay_panels(native, a, one.a, offset, RANK_LANES)
            _lay_panels(native, self.address + b, one.b, before, PANEL)
            words += [one.first, one.num_outputs, offset, one.rank, self.address + b]
            for vector, start in zip((one.gain, one.shift), vectors, strict=True):
                words.append(0 if vector is None else self.address + start)
                if vector is not None:
                    place = block[start + 4 * before :][: vector.nbytes]
                    place.copy_(vector.contiguous().view(torch.uint8))
            words += struct.unpack("q", struct.pack("d", one.scale))
            offset += one.rank
        block[: 8 * len(words)].view(torch.int64).copy_(torch.tensor(words))


def _panels_bytes(matrix: Tensor, rows: int, lanes: int) -> int:
    """Return the bytes of panels with so many rows as long as those of a matrix; see `LowRankPart` of `native/native.h`."""
    inputs = 2 if matrix.dtype is torch.bfloat16 else 1
    nbytes: int = -(-rows // lanes) * lanes * -(-matrix.shape[1] // inputs) * inputs * matrix.element_size()
    return nbytes


def _whole(update: LowRank) -> int:
    """Return the outputs of all panels of the layer that an update is in."""
    return -(-(update.first % PANEL + update.num_outputs) // PANEL) * PANEL


def _lay_panels(native: ModuleType, address: int, matrix: Tensor, first: int, lanes: int) -> None:
    """Copy the rows of a matrix to their lanes. first: the lane of the first row, counted over all panels."""
    rows, width = matrix.shape
    if width > 1 and matrix.stride(1) != 1:
        matrix = matrix.contiguous()
    stride = matrix.stride(0) * matrix.element_size()
    native.low_rank_pack(address, matrix.data_ptr(), stride, rows, width, first, lanes, FORMATS[matrix.dtype])


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
        return NativeUpdate(self._native, updates, self._arena)

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
