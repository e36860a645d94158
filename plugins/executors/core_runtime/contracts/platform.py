"""The contracts of platforms, which open devices.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from core_runtime.contracts.kernels import Kernels

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from core.api.kv_transfer import Page


MemoryTag = Literal["weights", "kv", "workspace"]
"""Purpose of memory, so that a runtime can release or move all memory with the same purpose."""


class CapturedCalls(Protocol):
    """A recording of kernel calls."""

    def __call__(self, num_rows: int, num_seqs: int) -> None:
        """Run the calls again on the same buffers.

        num_rows, num_seqs: rows and sequences of the buffers that belong to the step. A recording that serves all sizes
        computes as many; one of a fixed size computes all its rows, and those after the step's own are padding.
        """
        ...


@runtime_checkable
class Captures(Protocol):
    """Optional part of a runtime: it records kernel calls."""

    def capture(self, run: Callable[[], None], num_rows: int, num_seqs: int) -> CapturedCalls | None:
        """Compute `run()` once, on that many rows and sequences, and record its calls.

        A runtime whose recording does not compute calls `run` twice: to compute, then to record.
        Returns None if the calls cannot be replayed; they were computed all the same.
        """
        ...


@runtime_checkable
class CapturesSizes(Protocol):
    """Optional part of a runtime that records: a recording serves one number of rows only."""

    def capture_sizes(self, kind: str, max_rows: int) -> Sequence[int] | None:
        """Return row counts, at most `max_rows`, for which calls of this kind are recorded; None: one recording serves all.

        A step is padded up to the next listed count, and not recorded if it has more rows than all of them.

        kind: `decode` (each sequence computes one token), `mixed` (any step), `head` (logits of some rows), `sample`, or
        `draw` and `draw filtered` (logits of some rows, and tokens drawn from them on the device);
        more kinds may be added. Steps that verify drafts are recorded for multiples of the sizes of `decode`.
        """
        ...


@runtime_checkable
class Uploads(Protocol):
    """Optional part of a runtime: its device has memory of its own, and copies to it asynchronously."""

    def upload(self, device: Tensor, host: Tensor) -> Callable[[], None] | None:
        """Begin to copy `host` to `device`, uint8 [nbytes] both; kernels called later see the copied bytes.

        Returns a function that waits until `host` may be written again, None if it may be at once.
        """
        ...


@runtime_checkable
class Downloads(Protocol):
    """Optional part of a runtime that `Uploads`: it also copies results back asynchronously.

    A device then gets a step before the results of the previous one are known.
    """

    def download(self, host: Tensor, device: Tensor) -> Callable[[], None]:
        """Begin to copy `device` to `host`, uint8 [nbytes] both, after all kernels that were called so far.

        host: from `host_memory`; undefined until the copy is complete.
        Returns a function that waits until the copy is complete.
        """
        ...

    def host_memory(self, nbytes: int) -> Tensor:
        """Return uint8 [nbytes] of host memory that the device can access by itself (pinned)."""
        ...


class Event(Protocol):
    """A position in the order of a device's work."""

    def synchronize(self) -> None:
        """Wait until the device has reached it."""
        ...


@runtime_checkable
class CopiesAside(Uploads, Downloads, Protocol):
    """Optional part of a runtime that `Downloads`: it copies while kernels compute, in an order of its own.

    Only KV blocks are copied so, because they are large.
    """

    def event(self) -> Event:
        """Return an event after all kernels called so far."""
        ...

    def copy_aside(self, target: Tensor, source: Tensor, after: Event | None) -> Event:
        """Begin to copy between the device and memory from `host_memory`; kernels do not wait for the copy, nor it for
        kernels. Returns the event after it.

        after: an event from `event` that the copy waits for.
        """
        ...

    def wait_aside(self, event: Event) -> None:
        """Let kernels called from now on wait for an event from `copy_aside`; the host does not wait."""
        ...


@runtime_checkable
class FetchesWeights(CopiesAside, Protocol):
    """Optional part of a runtime that `CopiesAside`: weights lie in memory from `host_memory`, and kernels come to them.

    `fetch`, `event` and `wait_aside` may also be called in calls that are recorded, which then do the same again.
    """

    def fetch(self, target: Tensor, source: Tensor, after: Event) -> Event:
        """Begin to copy weights to the device, uint8 [nbytes] both, in the order of such copies alone. `source` is read
        only. Returns the event after the copy, for `wait_aside`.

        after: an event from `event` that the copy waits for.
        """
        ...

    def in_place(self, host: Tensor) -> Tensor:
        """Return memory from `host_memory` as kernels of the device read it, uint8 [nbytes]. Raises UserError where they
        cannot.
        """
        ...


class PageCopier(Protocol):
    """Copies of KV blocks in the buffers of a cache in host memory."""

    def save(self, block_ids: Sequence[int], into: Sequence[Page]) -> None:
        """Copy the bytes of blocks, each in all buffers, to the pages at the same places of `into`."""
        ...

    def load(self, loads: Sequence[tuple[int, Page]]) -> None:
        """Write pages to blocks."""
        ...


@runtime_checkable
class CopiesPages(Protocol):
    """Optional part of a runtime whose memory is the host's: it copies many parts of KV blocks in one call."""

    def page_copies(self, buffers: Sequence[Tensor]) -> PageCopier | None:
        """Return copies of the blocks in `buffers`, uint8 [num_blocks, block bytes] each; None where it has none."""
        ...


@runtime_checkable
class Releases(Protocol):
    """Optional part of a runtime: memory of a tag can be released for a while.

    Nothing may compute meanwhile. Addresses stay the same, so tensors and recordings are valid again afterwards.
    """

    def release(self, tag: MemoryTag) -> int:
        """Release the memory of a tag; its contents are lost. Returns its bytes; 0 if it is released already."""
        ...

    def restore(self, tag: MemoryTag) -> None:
        """Restore the memory of a tag, zeroed, at the same addresses; does nothing if it is present.

        Raises UserError, which says how much is free, if other processes have taken it.
        """
        ...


@runtime_checkable
class AllocatesInFiles(Protocol):
    """Optional part of a runtime: its device computes in memory that is a file, which may outlive the process."""

    def allocate_in(self, descriptor: int, offset: int, nbytes: int) -> Tensor:
        """Map uint8 [nbytes] of an open file from `offset` on, a multiple of 4096; what is written is in the file."""
        ...


@runtime_checkable
class Trims(Protocol):
    """Optional part of a runtime that keeps freed memory for its next allocations."""

    def trim(self) -> None:
        """Return to the device what is kept and in no use. Also called after `close`, once the models are gone."""
        ...


@runtime_checkable
class ExplainsFailures(Protocol):
    """Optional part of a runtime: it knows what errors of its device mean to a user."""

    def meaning(self, error: Exception) -> str | None:
        """Return a sentence with a way out for an error while an engine starts; None if it is not the device's."""
        ...


@runtime_checkable
class Runtime(Protocol):
    """An opened device. The worker owns it.

    A runtime may also have the parts `Captures`, `CapturesSizes`, `Uploads`, `Downloads`, `CopiesAside`,
    `FetchesWeights`, `CopiesPages`, `Releases`, `AllocatesInFiles`, `Trims`, `ExplainsFailures` and `Communicates`.
    """

    device: torch.device
    kernels: Kernels
    num_threads: int

    def activation_dtype(self, dtype: str) -> torch.dtype:
        """Return the dtype of tensors between layers when the model runs in `dtype`."""
        ...

    def available_memory(self) -> int:
        """Return the bytes that could be allocated now."""
        ...

    def allocate(self, nbytes: int, tag: MemoryTag = "kv") -> Tensor:
        """Allocate zeroed uint8 [nbytes] on the device. tag: its purpose.

        A runtime whose `allocate` has no argument `tag` is called without it.
        """
        ...

    def close(self) -> None:
        """Stop all threads and release all memory."""
        ...


@runtime_checkable
class Platform(Protocol):
    """Kind `platform`. num_threads: compute threads that kernel providers are loaded with."""

    num_threads: int

    def open(self, device: str, kernels: Sequence[Kernels]) -> Runtime:
        """Open a device with the loaded kernel providers, best first (the reference operations come last by themselves)."""
        ...
