"""Workers of users' own, for `--worker-cls`."""

from typing import Any

from core.api.step_plan import StepPlan, StepResult
from core_runtime.executor.worker import Worker


class Counting(Worker):
    """Counts the steps that it computes, and answers as its base does."""

    num_steps = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.num_steps += 1
        return super().execute(plan)


class Fails(Worker):
    def __init__(self, config: Any, ranks: Any = None) -> None:
        raise ValueError("no such device")


class Lacks(Worker):
    def execute(self) -> StepResult:  # type: ignore[override]
        raise AssertionError


class Hides(Worker):
    close = None  # type: ignore[assignment]


class NoWorker:
    def __init__(self, config: Any) -> None:
        pass
