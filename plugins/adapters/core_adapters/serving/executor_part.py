"""The optional part of an executor that serves adapters.

Owns: its contract. Never does: compute. Called by: the observer and the holder of adapters; executors implement it, without a
base class.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from core.api.adapters import AdapterFacts, AdapterSource
from core.engine.executor import Executor


@runtime_checkable
class AdaptingExecutor(Executor, Protocol):
    """An executor that computes requests with adapters (`EngineRequest.adapter`)."""

    def read_adapter(self, source: AdapterSource) -> AdapterFacts:
        """Read, check and keep an adapter. Called from another thread while steps are computed. Raises UserError, OSError."""
        ...

    def place_adapter(self, digest: str) -> None:
        """Let later plans name an adapter that was read. Called between steps."""
        ...

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter that no sequence uses, placed or only read. Called between steps."""
        ...
