"""A runtime that records as a device's graphs do: calls of one size, at addresses that must stay. It computes on the CPU.

Owns: the recordings and what they find wrong. Never does: compute anything by itself.
Called by: tests of whatever uses a runtime's `capture`.

A recording knows nothing but the calls, their numbers and where their tensors lay: it keeps no memory alive. A replay
computes all rows of its size, those behind a step's own on NaN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from core_kit.intercepted import ROWS, InterceptedAttention, InterceptedRuntime
from core_runtime.contracts import BatchView, CapturedCalls, Runtime

SIZES = (1, 2, 4, 8, 16)
ROW_ARGUMENTS = {**ROWS, "rows": (1,), "attention.write": (1, 2), "attention.forward": (1, 2)}
"""Of each call but `linear`, the arguments with a row for each row of the step."""


class MovedError(Exception):
    """A tensor of a recorded call is no longer where it was; `str` names the call."""


class Place:
    """Where a tensor lies, without keeping it there."""

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._storage = StorageWeakRef(storage)
        self._address = storage.data_ptr()
        self._dtype = tensor.dtype
        self._offset = tensor.storage_offset()
        self._shape = tensor.shape
        self._strides = tensor.stride()

    def tensor(self, name: str) -> Tensor:
        """The tensor. Raises MovedError."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        if storage is None:
            raise MovedError(f"{name}: the memory of a recorded tensor {tuple(self._shape)} was given back")
        if storage.data_ptr() != self._address:
            raise MovedError(f"{name}: a recorded tensor {tuple(self._shape)} has moved")
        tensor = torch.empty(0, dtype=self._dtype)
        return tensor.set_(storage, self._offset, self._shape, self._strides)


@dataclass(slots=True)
class RecordedCall:
    """One call. args: with places instead of tensors."""

    name: str
    function: Callable[..., Any]
    args: list[Any]
    options: dict[str, Any]

    def arguments(self) -> list[Any]:
        """With tensors again. Raises MovedError."""
        found = []
        for arg in self.args:
            found.append(arg.tensor(self.name) if isinstance(arg, Place) else arg)
        return found


class GraphCalls:
    """Every call while something is recorded."""

    def __init__(self) -> None:
        self.recording: list[RecordedCall] | None = None

    def run(self, name: str, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Call, and keep the call when it is not part of another one that is kept."""
        kept = self.recording
        self.recording = None  # what `function` calls is replayed with it
        try:
            result = function(*args, **options)
        finally:
            self.recording = kept
        if kept is not None:
            places = [Place(arg) if isinstance(arg, Tensor) else arg for arg in args]
            kept.append(RecordedCall(name, function, places, options))
        return result


class Graph:
    """The calls of `num_rows` rows."""

    def __init__(self, calls: list[RecordedCall], num_rows: int, replayed: Callable[[], None]) -> None:
        self._calls = calls
        self._num_rows = num_rows
        self._replayed = replayed

    def __call__(self, num_rows: int, num_seqs: int) -> None:
        """Replay on all rows of the recording. Raises MovedError, and ValueError for more rows than there are."""
        if num_rows > self._num_rows:
            raise ValueError(f"{num_rows} rows do not fit a graph of {self._num_rows}")
        arguments = [call.arguments() for call in self._calls]
        for call, args in zip(self._calls, arguments, strict=True):
            for tensor in _row_tensors(call.name, args):
                if tensor.is_floating_point():
                    tensor[num_rows : self._num_rows] = torch.nan
        for call, args in zip(self._calls, arguments, strict=True):
            call.function(*args, **call.options)
        self._replayed()


class FakeGraphRuntime(InterceptedRuntime):
    """The runtime `inner` (of a CPU) with `capture` and `capture_sizes`.

    sizes: numbers of rows that are recorded, of every kind.
    recorded, replayed: how often, by number of rows.
    """

    def __init__(self, inner: Runtime, sizes: Sequence[int] = SIZES) -> None:
        self._sizes = sizes
        self._graph_calls = GraphCalls()
        super().__init__(inner, self._graph_calls)
        self.recorded: Counter[int] = Counter()
        self.replayed: Counter[int] = Counter()

    def capture_sizes(self, kind: str, max_rows: int) -> Sequence[int]:
        """The same for every kind."""
        return [size for size in self._sizes if size <= max_rows]

    def capture(self, run: Callable[[], None], num_rows: int, num_seqs: int) -> CapturedCalls | None:
        """Call `run` and record it for exactly that many rows; None when it called nothing that can be recorded."""
        calls: list[RecordedCall] = []
        self._graph_calls.recording = calls
        try:
            run()
        finally:
            self._graph_calls.recording = None
        if not calls:
            return None
        self.recorded[num_rows] += 1
        return Graph(calls, num_rows, lambda: self.replayed.update([num_rows]))


class FakeGraphAttention(InterceptedAttention):
    """An attention backend that goes by the tensors of a step alone, as a device's kernels do.

    inner: computes, and takes padded steps; it may go by the lists.
    kernels: of the `FakeGraphRuntime`.
    """

    capture = "any"

    def build(self, view: BatchView) -> BatchView:
        """Nothing of the step but where its tensors lie."""
        return view

    def write(self, handle: Any, k: Tensor, v: Tensor, metadata: BatchView) -> None:
        """See `AttentionBackend`."""
        args = (handle, k, v, *_tensors(metadata), metadata.block_size)
        self._calls.run("attention.write", self._write, args, {})

    def forward(self, handle: Any, q: Tensor, metadata: BatchView, out: Tensor) -> None:
        """See `AttentionBackend`."""
        args = (handle, q, out, *_tensors(metadata), metadata.block_size)
        self._calls.run("attention.forward", self._forward, args, {})

    def _write(self, handle: Any, k: Tensor, v: Tensor, *step: Any) -> None:
        metadata = self._inner.build(_view(*step))
        self._inner.write(handle, k, v, metadata)

    def _forward(self, handle: Any, q: Tensor, out: Tensor, *step: Any) -> None:
        metadata = self._inner.build(_view(*step))
        self._inner.forward(handle, q, metadata, out)


def _tensors(view: BatchView) -> tuple[Tensor, ...]:
    return view.cu_seqlens_q, view.seq_lens, view.block_table, view.slot_mapping, view.positions


def _view(
    cu_seqlens: Tensor, seq_lens: Tensor, table: Tensor, slots: Tensor, positions: Tensor, block_size: int
) -> BatchView:
    """The step that the tensors hold now. Raises ValueError when its padding is not what `BatchView` says."""
    query_lens = cu_seqlens.diff().tolist()
    lengths = seq_lens.tolist()
    for rows, length in zip(query_lens, lengths, strict=True):
        if rows == 0 and length != 0:
            raise ValueError(f"a sequence without rows has a length: rows {query_lens}, lengths {lengths}; expected 0")
    padded_slots = slots[sum(query_lens) :]
    if bool((padded_slots != -1).any()):
        raise ValueError(f"a row that belongs to no sequence has a slot: {slots.tolist()}; expected -1")
    return BatchView(
        num_tokens=len(slots),
        num_seqs=len(lengths),
        block_size=block_size,
        max_query_len=max(query_lens),
        max_seq_len=max(lengths),
        query_lens=query_lens,
        seq_lens_list=lengths,
        cu_seqlens_q=cu_seqlens,
        seq_lens=seq_lens,
        block_table=table,
        slot_mapping=slots,
        positions=positions,
    )


def _row_tensors(name: str, args: Sequence[Any]) -> list[Tensor]:
    """Arguments of a call with a row for each row of the step."""
    if name == "linear":
        return [args[0], args[-1]]
    return [args[index] for index in ROW_ARGUMENTS[name]]
