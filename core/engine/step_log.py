"""A line of log for each step.

Owns: `StepLog`. Never does: count anything for others. Called by: `EngineCore`, where it is asked for.
"""

from __future__ import annotations

import logging
import time

from core.scheduler.step import Step

logger = logging.getLogger(__name__)


class StepLog:
    """Steps that were submitted and have no result yet."""

    def __init__(self) -> None:
        self._begun: dict[int, float] = {}

    def begin(self, step: Step) -> None:
        """A step is handed to the executor."""
        self._begun[step.number] = time.perf_counter()

    def end(self, step: Step) -> None:
        """It has its result; those before it that failed are forgotten."""
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
