"""The contract of adapter formats, which read the files of an adapter.

Owns: `AdapterFormat`. Never does: import torch at run time. Called by: plugins of kind `adapter` (they implement it), the
executor's adapters (they call it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from core_runtime.weights.adapter_contents import AdapterContents


@runtime_checkable
class AdapterFormat(Protocol):
    """Kind `adapter`: one format of adapters. It knows names and numbers of files, and nothing of the model."""

    def claims(self, path: str) -> bool:
        """Whether the file or directory is an adapter of this format. Raises nothing."""
        ...

    def read(self, path: str) -> AdapterContents:
        """Read an adapter. Its tensors are the caller's. Raises UserError, in one sentence, when it cannot be used as it is.

        Called in another thread than that of the steps.
        """
        ...
