"""The contracts of platforms: an opened device.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from core.plugin.contracts.kernels import Kernels

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
        """Call `run()` once, which computes on that many rows and sequences, and record what it called.

        None when that cannot be replayed; `run` was called all the same.
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
class Runtime(Protocol):
    """An opened device. A runtime may also have the parts `Captures`, `CapturesSizes` and `Uploads`."""

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
