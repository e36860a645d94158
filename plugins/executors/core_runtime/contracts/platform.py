"""The contracts of platforms: an opened device.

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


MemoryTag = Literal["weights", "kv", "workspace"]
"""What memory is for, so that a runtime can give back or move all that serves one purpose."""


class CapturedCalls(Protocol):
    """Recorded kernel calls."""

    def __call__(self, num_rows: int, num_seqs: int) -> None:
        """Run them again on the same buffers.

        num_rows, num_seqs: how many rows and sequences of the buffers are a step's own. A recording that serves all sizes
        computes as many; one of a fixed size computes all its rows, and those behind are padding.
        """
        ...


@runtime_checkable
class Captures(Protocol):
    """Optional part of a runtime: it records kernel calls."""

    def capture(self, run: Callable[[], None], num_rows: int, num_seqs: int) -> CapturedCalls | None:
        """Compute what `run()` computes, on that many rows and sequences, once, and record what it calls.

        A runtime whose recording does not compute calls `run` twice: to compute, then to record.
        None when that cannot be replayed; it was computed all the same.
        """
        ...


@runtime_checkable
class CapturesSizes(Protocol):
    """Optional part of a runtime that records: a recording is good for one number of rows only."""

    def capture_sizes(self, kind: str, max_rows: int) -> Sequence[int] | None:
        """Numbers of rows, at most `max_rows`, for which calls of this kind are recorded; None: one recording serves all.

        A step is padded up to the next listed number, and not recorded when it has more rows than all of them.

        kind: `decode` (each sequence computes one token), `mixed` (any step), `head` (logits of some rows) or `sample`;
        more kinds may come.
        """
        ...


@runtime_checkable
class Uploads(Protocol):
    """Optional part of a runtime: its device has memory of its own, and copies to it in its own time."""

    def upload(self, device: Tensor, host: Tensor) -> Callable[[], None] | None:
        """Begin to copy `host` to `device`, uint8 [nbytes] both; kernels that are called later see what was copied.

        Returns what waits until `host` may be written again, None when it may be at once.
        """
        ...


@runtime_checkable
class Downloads(Protocol):
    """Optional part of a runtime that `Uploads`: results come back in the device's own time, too.

    Steps are then given to the device before the results of those before them are known.
    """

    def download(self, host: Tensor, device: Tensor) -> Callable[[], None]:
        """Begin to copy `device` to `host`, uint8 [nbytes] both, as it is behind all kernels that were called so far.

        host: of `host_memory`, and means nothing until then.
        Returns what waits until the copy is there.
        """
        ...

    def host_memory(self, nbytes: int) -> Tensor:
        """uint8 [nbytes] of the host, which the device can read and write by itself (pinned)."""
        ...


@runtime_checkable
class Releases(Protocol):
    """Optional part of a runtime: what lies in memory of a tag can be given up for a while.

    Nothing may compute meanwhile. Addresses stay, so tensors and recordings are good again afterwards.
    """

    def release(self, tag: MemoryTag) -> int:
        """Give the memory of a tag back to the device; what it held is lost. Returns bytes; 0 when it is away already."""
        ...

    def restore(self, tag: MemoryTag) -> None:
        """Take as much memory again, zeroed, at the same addresses; nothing happens when it is there.

        Raises UserError, which says what is free, when others have taken it.
        """
        ...


@runtime_checkable
class Runtime(Protocol):
    """An opened device.

    A runtime may also have the parts `Captures`, `CapturesSizes`, `Uploads`, `Downloads` and `Releases`.
    """

    device: torch.device
    kernels: Kernels
    num_threads: int

    def activation_dtype(self, dtype: str) -> torch.dtype:
        """dtype of tensors between layers when the model runs in `dtype`."""
        ...

    def available_memory(self) -> int:
        """Bytes that could be allocated now."""
        ...

    def allocate(self, nbytes: int, tag: MemoryTag = "kv") -> Tensor:
        """Zeroed uint8 [nbytes] on the device. tag: what it is for.

        A runtime without the argument `tag` is asked without it.
        """
        ...

    def close(self) -> None:
        """Give threads and memory back."""
        ...


@runtime_checkable
class Platform(Protocol):
    """Kind `platform`. num_threads: compute threads that kernel providers are loaded with."""

    num_threads: int

    def open(self, device: str, kernels: Sequence[Kernels]) -> Runtime:
        """Open a device with the loaded kernel providers, best first (the reference operations come last by themselves)."""
        ...
