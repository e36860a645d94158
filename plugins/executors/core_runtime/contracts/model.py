"""The contract of model families: what a checkpoint's configuration means.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from core_runtime.specs.decoder_spec import DecoderSpec


@runtime_checkable
class ModelFamily(Protocol):
    """Kind `model`: reads the configurations of a family that the engine's own table does not know. Torch-free."""

    def decoder_spec(self, hf_config: Mapping[str, Any]) -> DecoderSpec:
        """The model's shape. Raises UserError for missing or impossible values."""
        ...

    def canonical_name(self, name: str) -> str:
        """The canonical (Hugging Face llama's) name of a checkpoint's tensor; names that it does not know stay."""
        ...


@runtime_checkable
class HasRow(Protocol):
    """Kind `model`, in place of `ModelFamily`: gives a row as the engine's own table has them.

    row: a `core_runtime.models.families.Family`; it says what configurations mean and how tensors are named and laid out, and
        keys and tensors that it does not read are refused as they are for the engine's own rows.
    """

    row: Any
