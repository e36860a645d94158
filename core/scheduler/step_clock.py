"""When steps begin and end.

Owns: `StepClock`: the seconds of each step, and teaching them to the cost model. Never does: plan, or judge a step.
Called by: the scheduler, where somebody goes by the time of steps: a limit of stalls, or the choice of drafts.
"""

from __future__ import annotations

from collections.abc import Callable

from core.api.step_plan import StepResult
from core.scheduler.step import Step
from core.scheduler.step_cost import StepCost, work_of


class StepClock:
    """The time of each step of one engine.

    cost:  learns from each step, without the seconds in which its drafts were proposed.
    clock: seconds.
    ended: when the newest step was done.
    """

    __slots__ = ("_clock", "cost", "ended")

    def __init__(self, cost: StepCost, clock: Callable[[], float]) -> None:
        self.cost = cost
        self.ended = clock()
        self._clock = clock

    def begin(self, step: Step) -> None:
        """A step is under way."""
        step.begun = self._clock()

    def end(self, step: Step, result: StepResult) -> float:
        """A step is done; its results have not been read yet. Returns its seconds."""
        now = self._clock()
        # Streams also wait for what lies between two steps, so for them a step begins where the one before ended.
        begun = self.ended if step.num_decodes else max(step.begun, self.ended)
        self.ended = now
        seconds = now - begun
        if step.plan.total_num_tokens:
            work = work_of(step.plan, step.num_decodes, result)
            self.cost.observe(work, seconds - result.draft_seconds)
        return seconds
