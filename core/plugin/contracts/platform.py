"""The contracts of platforms: an opened device.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from collections.abc import Sequence
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
        """Run them again with the first `num_rows` rows and `num_seqs` sequences of the same buffers."""
        ...


@runtime_checkable
class Runtime(Protocol):
    """An opened device.

    A runtime may also have `capture(run, num_rows, num_seqs) -> CapturedCalls | None`: call `run()` once, which computes on
    that many rows, and record what it called; None when that cannot be replayed for other sizes.
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
