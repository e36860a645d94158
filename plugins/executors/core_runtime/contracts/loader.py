"""The contract of loaders, which read the tensors of checkpoints.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from core_runtime.specs.checkpoint import CheckpointManifest

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Loader(Protocol):
    """Kind `loader`. `resolve` must not import torch; the command line calls it."""

    def resolve(self, ref: str) -> CheckpointManifest:
        """Read names, shapes, configuration and tokenizer source. Raises CheckpointError."""
        ...

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield (canonical name, tensor on the CPU) for each of `reads`, in an order that suits the files.

        Packed types are uint8 [N, bytes a row]; plain types have their own dtype and logical shape. A tensor is valid
        until the next one is drawn.
        """
        ...


@runtime_checkable
class KeepsTensors(Protocol):
    """Optional part of a loader: tensors that stay valid, such as pages of a mapped file."""

    @property
    def keeps_tensors(self) -> bool:
        """Whether each tensor is valid as long as it is referenced, not only until the next one is drawn."""
        ...


def keeps_tensors(loader: Loader) -> bool:
    """Whether the tensors of a loader are valid as long as they are referenced."""
    return isinstance(loader, KeepsTensors) and loader.keeps_tensors


@runtime_checkable
class ResolvesTensors(Protocol):
    """Optional part of a loader: it finds tensors without a configuration, for weight updates."""

    def resolve_tensors(self, ref: str) -> CheckpointManifest:
        """Resolve `ref`, a folder or a file; `config` is empty if there is none. Raises CheckpointError."""
        ...
