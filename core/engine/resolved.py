"""What a start of the engine needs of resolved arguments.

Owns: that Protocol; `core.config.resolve.Resolution` is the implementation. Never does: resolve. Called by: `AsyncEngine`.
"""

from __future__ import annotations

from typing import Protocol

from core.api.checkpoint import CheckpointManifest
from core.api.config import EngineConfig
from core.api.errors import PluginError


class Resolved(Protocol):
    """Arguments that are settled, with a way to settle them without a plugin that fails."""

    @property
    def engine(self) -> EngineConfig:
        """Everything that the engine process is built from."""
        ...

    @property
    def manifest(self) -> CheckpointManifest:
        """Of the checkpoint; its tokenizer is loaded while the engine starts."""
        ...

    def without(self, error: PluginError) -> Resolved:
        """The same, settled again without the plugin that failed with `error`. Raises PluginError when it must be there."""
        ...
