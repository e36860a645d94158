"""What outlives an engine's client: the seed of a request and what the engine gave it.

Owns: the Protocol. Never does: keep anything (`core_apis.journal` does). Called by: `AsyncEngine`, for requests whose
terms name a recorder; all others cost nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from core.api.messages import EngineOutput


class Recorder(Protocol):
    """Of one request.

    seed: of its noise, as an earlier client drew it; None: it is new.
    past: what earlier engines gave it, step by step.
    """

    seed: int | None
    past: Sequence[Sequence[EngineOutput]]

    def begin(self, seed: int) -> None:
        """The request enters the engine. seed: of its noise."""
        ...

    def record(self, outputs: Sequence[EngineOutput]) -> None:
        """What one step gave it."""
        ...
