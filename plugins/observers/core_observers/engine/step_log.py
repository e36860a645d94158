"""A log line for each step.

Owns: `StepLog`, an observer of the engine. Never does: count anything for others. Called by: the engine core.
"""

from __future__ import annotations

import logging
import time
from typing import Self

from core.engine.observer import EngineObserver, EngineStart
from core.scheduler.step import Step

logger = logging.getLogger(__name__)


class StepLog(EngineObserver):
    """The log of steps, with the start times of those that were submitted and have no result yet."""

    def __init__(self) -> None:
        self._begun: dict[int, float] = {}

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Return the log of steps, if `--log-steps` is given."""
        return cls() if start.config.log_steps else None

    def submitted(self, step: Step) -> None:
        """Note the time at which a step is handed to the executor."""
        self._begun[step.number] = time.perf_counter()

    def finished(self, step: Step) -> None:
        """Log a step that has its result, and drop the failed ones before it."""
        begin = self._begun.get(step.number, time.perf_counter())
        elapsed_ms = 1000.0 * (time.perf_counter() - begin)
        num_prompt_tokens = sum(chunk.num_tokens for chunk in step.chunks)
        logger.info(
            "Step %d: %d prompts with %d tokens, %d decodes with %d tokens, %.2f ms",
            step.number,
            len(step.chunks),
            num_prompt_tokens,
            step.num_decodes,
            step.plan.total_num_tokens - num_prompt_tokens,
            elapsed_ms,
        )
        self._begun = {number: at for number, at in self._begun.items() if number > step.number}
