"""A fake runtime that records like a device's graphs: calls of one size, at fixed addresses. It computes on the CPU.

Owns: the recordings and the errors they detect. Never does: compute anything by itself.
Called by: tests of code that uses a runtime's `capture`.

A recording holds only the calls, their scalars and the addresses of their tensors: it keeps no memory alive. A replay
computes all rows of its size; rows beyond the step's own hold NaN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from core_kit.devices.intercepted import ROWS, InterceptedAttention, InterceptedRuntime
from core_runtime.contracts import BatchView, CapturedCalls, Runtime

SIZES = (1, 2, 4, 8, 16)
ROW_ARGUMENTS = {**ROWS, "rows": (1,), "attention.write": (1, 2), "attention.forward": (1, 2)}
"""For each call except `linear`, the arguments with a row for each row of the step."""


class MovedError(Exception):
    """Raised when a tensor of a recorded call has moved; `str` names the call."""


class Place:
    """The address of a tensor, without keeping the tensor alive."""

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._storage = StorageWeakRef(storage)
        self._address = storage.data_ptr()
        self._dtype = tensor.dtype
        self._offset = tensor.storage_offset()
        self._shape = tensor.shape
        self._strides = tensor.stride()

    def tensor(self, name: str) -> Tensor:
        """Return the tensor. Raises MovedError."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        if storage is None:
            raise MovedError(f"{name}: the memory of a recorded tensor {tuple(self._shape)} was given back")
        if storage.data_ptr() != self._address:
            raise MovedError(f"{name}: a recorded tensor {tuple(self._shape)} has moved")
        tensor = torch.empty(0, dtype=self._dtype)
        return tensor.set_(storage, self._offset, self._shape, self._strides)


@dataclass(slots=True)
class RecordedCall:
    """A recorded call. args: with places instead of tensors."""

    name: str
    function: Callable[..., Any]
    args: list[Any]
    options: dict[str, Any]

    def arguments(self) -> list[Any]:
        """Return the arguments with tensors restored. Raises MovedError."""
        found = []
        for arg in self.args:
            found.append(arg.tensor(self.name) if isinstance(arg, Place) else arg)
        return found


class GraphCalls:
    """Records every call while a recording is active."""

    def __init__(self) -> None:
        self.recording: list[RecordedCall] | None = None

    def run(self, name: str, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Run the call, and record it unless it is part of another recorded call."""
        kept = self.recording
        self.recording = None  # calls made inside `function` are replayed with it
        try:
            result = function(*args, **options)
        finally:
            self.recording = kept
        if kept is not None:
            places = [Place(arg) if isinstance(arg, Tensor) else arg for arg in args]
            kept.append(RecordedCall(name, function, places, options))
        return result


class Graph:
    """The recorded calls of `num_rows` rows."""

    def __init__(self, calls: list[RecordedCall], num_rows: int, replayed: Callable[[], None]) -> None:
        self._calls = calls
        self._num_rows = num_rows
        self._replayed = replayed

    def __call__(self, num_rows: int, num_seqs: int) -> None:
        """Replay on all rows of the recording. Raises MovedError, and ValueError for more rows than it has."""
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
    """The CPU runtime `inner` with `capture` and `capture_sizes`.

    sizes: row counts to record, for every kind.
    recorded, replayed: counters by row count.
    """

    def __init__(self, inner: Runtime, sizes: Sequence[int] = SIZES) -> None:
        self._sizes = sizes
        self._graph_calls = GraphCalls()
        super().__init__(inner, self._graph_calls)
        self.recorded: Counter[int] = Counter()
        self.replayed: Counter[int] = Counter()

    def capture_sizes(self, kind: str, max_rows: int) -> Sequence[int]:
        """Return the same row counts for every kind."""
        return [size for size in self._sizes if size <= max_rows]

    def capture(self, run: Callable[[], None], num_rows: int, num_seqs: int) -> CapturedCalls | None:
        """Call `run` and record it for exactly that many rows; None when it made no recordable call."""
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
    """An attention backend that uses only the tensors of a step, as a device's kernels do.

    inner: the backend that computes; it accepts padded steps and may use the lists.
    kernels: of the `FakeGraphRuntime`.
    """

    capture = "any"

    def build(self, view: BatchView) -> BatchView:
        """Keep only the addresses of the step's tensors."""
        return view

    def write(self, handle: Any, k: Tensor, v: Tensor, metadata: BatchView) -> None:
        """Store keys and values, as a recordable call."""
        args = (handle, k, v, *_tensors(metadata), metadata.block_size)
        self._calls.run("attention.write", self._write, args, {})

    def forward(self, handle: Any, q: Tensor, metadata: BatchView, out: Tensor) -> None:
        """Attend, as a recordable call."""
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
    """Rebuild the step from the tensors' current content. Raises ValueError when its padding violates `BatchView`."""
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
    """Return the arguments of a call with a row for each row of the step."""
    if name == "linear":
        return [args[0], args[-1]]
    return [args[index] for index in ROW_ARGUMENTS[name]]
