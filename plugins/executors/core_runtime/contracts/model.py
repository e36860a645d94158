"""The contract of model families, which interpret a checkpoint's configuration.

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
        """Return the model's shape. Raises UserError for missing or impossible values."""
        ...

    def canonical_name(self, name: str) -> str:
        """Return the canonical name (Hugging Face llama's) of a checkpoint's tensor; unknown names are returned unchanged."""
        ...


@runtime_checkable
class HasRow(Protocol):
    """Kind `model`, instead of `ModelFamily`: provides a row in the form of the engine's own table.

    row: a `core_runtime.models.families.Family`; it interprets configurations, and gives names and layout of tensors.
        Keys and tensors that it does not read are refused as they are for the engine's own rows.
    """

    row: Any
