"""Times at which steps begin and end.

Owns: `StepClock`: the seconds of each step, and teaching them to the cost model. Never does: plan, or judge a step.
Called by: the scheduler, when a stall limit or the choice of drafts depends on the duration of steps.
"""

from __future__ import annotations

from collections.abc import Callable

from core.api.step_plan import StepResult
from core.scheduler.step import Step
from core.scheduler.step_cost import StepCost, work_of


class StepClock:
    """The time of each step of one engine.

    cost:  cost model; learns from each step, without the seconds of proposing drafts.
    clock: returns seconds.
    ended: time at which the newest step ended.
    """

    __slots__ = ("_clock", "cost", "ended")

    def __init__(self, cost: StepCost, clock: Callable[[], float]) -> None:
        self.cost = cost
        self.ended = clock()
        self._clock = clock

    def begin(self, step: Step) -> None:
        """Record the time at which a step was planned."""
        step.begun = self._clock()

    def end(self, step: Step, result: StepResult) -> float:
        """Record the end of a step whose results have not been read yet; returns its seconds."""
        now = self._clock()
        # Streams also wait for the work between two steps, so for them a step begins where the previous one ended.
        begun = self.ended if step.num_decodes else max(step.begun, self.ended)
        self.ended = now
        seconds = now - begun
        if step.plan.total_num_tokens:
            self.cost.observe(work_of(step.plan, step.num_decodes, result), seconds - result.draft_seconds)
        return seconds
