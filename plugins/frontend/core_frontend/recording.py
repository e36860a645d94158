"""The recorder of a request, whose data outlives the engine's client: the seed and the engine's outputs.

Owns: the Protocol. Never does: keep anything (`core_apis.journal` does). Called by: `AsyncEngine`, for requests whose
terms name a recorder; all others cost nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from core.api.messages import EngineOutput


class Recorder(Protocol):
    """The recorder of one request.

    seed: of its noise, as an earlier client drew it; None: the request is new.
    past: outputs of earlier engines, step by step.
    """

    seed: int | None
    past: Sequence[Sequence[EngineOutput]]

    def begin(self, seed: int) -> None:
        """Record that the request enters the engine. seed: of its noise."""
        ...

    def record(self, outputs: Sequence[EngineOutput]) -> None:
        """Record the request's outputs of one step."""
        ...
