"""The contracts of platforms: an opened device.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from core.plugin.contracts.kernels import Kernels

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class CapturedCalls(Protocol):
    """Recorded kernel calls."""

    def __call__(self, num_rows: int, num_seqs: int) -> None:
        """Run them again with the first `num_rows` rows and `num_seqs` sequences of the same buffers."""
        ...


@runtime_checkable
class Runtime(Protocol):
    """An opened device. Optional part: `RecordingRuntime`."""

    device: torch.device
    kernels: Kernels
    num_threads: int

    def activation_dtype(self, dtype: str) -> torch.dtype:
        """dtype of tensors between layers when the model runs in `dtype`."""
        ...

    def available_memory(self) -> int:
        """Bytes that could be allocated now."""
        ...

    def allocate(self, nbytes: int) -> Tensor:
        """Zeroed uint8 [nbytes] on the device."""
        ...

    def close(self) -> None:
        """Give threads and memory back."""
        ...


@runtime_checkable
class RecordingRuntime(Protocol):
    """A runtime that records the calls of a forward pass."""

    def capture(self, run: Callable[[], None], num_rows: int, num_seqs: int) -> CapturedCalls | None:
        """Call `run()` once, which computes on that many rows, and record what it called.

        None when that cannot be replayed for other sizes.
        """
        ...


@runtime_checkable
class Platform(Protocol):
    """Kind `platform`. num_threads: compute threads that kernel providers are loaded with."""

    num_threads: int

    def open(self, device: str, kernels: Sequence[Kernels]) -> Runtime:
        """Open a device with the loaded kernel providers, best first (the reference operations come last by themselves)."""
        ...
