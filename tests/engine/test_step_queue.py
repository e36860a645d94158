"""Executors with a queue of their own, executors in lockstep, and what becomes of steps behind one that fails."""

import threading
from collections import deque
from typing import Any

import pytest
from fakes import EOS, RAISE, FakeExecutor, make_config, reference

from core.api.messages import EngineOutput, EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepPlan, StepResult
from core.engine.core import EngineCore
from core.engine.step_queue import step_queue

PROMPTS = {f"r{i}": list(range(10 + i, 16 + 2 * i)) for i in range(7)}


class Driver:
    """Steps an engine. outputs: all that came, by request."""

    def __init__(self, kind: type[FakeExecutor], *, ahead: bool = True, **options: Any) -> None:
        config = make_config(options=options, scheduler={"async_scheduling": ahead})
        self.executor: Any = kind(config)
        self.core = EngineCore(config, self.executor)
        self.outputs: dict[str, list[EngineOutput]] = {}

    def add(self, name: str, prompt: list[int], max_tokens: int = 6) -> None:
        params = SamplingParams(max_tokens=max_tokens)
        self.core.add([EngineRequest(name, 0, prompt, params, 1, stop_token_ids=[EOS])])

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            for output in self.core.step().outputs:
                self.outputs.setdefault(output.request_id, []).append(output)
            self.core.scheduler.check_integrity()

    def drain(self) -> None:
        for _ in range(600):
            if not self.core.has_work():
                assert self.executor.sequences == {}
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs[name] for token in output.token_ids]


class Queueing(FakeExecutor):
    """Takes three plans. Computes each when it is taken, or, when it is lazy, when a result is asked for.

    deepest: most plans without a result.
    """

    max_in_flight = 3
    lazy = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.deepest = 0
        self.refusing = 0
        self._number = 0
        self._plans: deque[tuple[int, StepPlan]] = deque()
        self._done: dict[int, StepResult | BaseException] = {}

    def submit(self, plan: StepPlan) -> int:
        if self.refusing:
            self.refusing -= 1
            raise RuntimeError("the fake takes nothing")
        self._number += 1
        self._plans.append((self._number, plan))
        if not self.lazy:
            self._compute()
        self.deepest = max(self.deepest, len(self._plans) + len(self._done))
        return self._number

    def result(self, ticket: int) -> StepResult:
        while ticket not in self._done:
            self._compute()
        done = self._done.pop(ticket)
        self._done = {number: result for number, result in self._done.items() if number > ticket}
        if isinstance(done, BaseException):
            raise done
        return done

    def _compute(self) -> None:
        number, plan = self._plans.popleft()
        try:
            self._done[number] = self.execute(plan)
        except BaseException as error:
            self._done[number] = error


class Lazy(Queueing):
    lazy = True


@pytest.mark.parametrize("kind", [Queueing, Lazy])
@pytest.mark.parametrize("num_blocks", [64, 14])
def test_an_executor_with_a_queue_gets_as_many_steps_as_it_takes(kind: type[Queueing], num_blocks: int) -> None:
    engine = Driver(kind, num_blocks=num_blocks)
    for name, prompt in PROMPTS.items():
        engine.add(name, prompt, 12)
    engine.drain()
    for name, prompt in PROMPTS.items():
        assert engine.tokens(name) == reference(prompt, 12)
    assert engine.executor.deepest == 3
    assert (engine.core.stats().num_preemptions > 0) == (num_blocks == 14)


def test_without_planning_ahead_a_queue_holds_one_step() -> None:
    engine = Driver(Queueing, ahead=False)
    engine.add("a", [1, 2, 3])
    engine.drain()
    assert engine.tokens("a") == reference([1, 2, 3], 6)
    assert engine.executor.deepest == 1


@pytest.mark.parametrize("poisoned", [False, True])
@pytest.mark.parametrize("kind", [Queueing, Lazy])
def test_steps_behind_one_that_failed_count_as_never_begun(kind: type[Queueing], poisoned: bool) -> None:
    engine = Driver(kind)
    for name, prompt in PROMPTS.items():
        engine.add(name, prompt)
    engine.step(3)
    engine.add("late", [5, 6])
    if poisoned:
        engine.add("bad", [RAISE, 1])
    else:
        engine.executor.raising = 1
    engine.drain()
    assert engine.core.stats().num_failed_steps > 0
    if poisoned:
        assert "a poisoned prompt" in str(engine.outputs["bad"][-1].stop_reason)
    for name, prompt in {**PROMPTS, "late": [5, 6]}.items():
        assert engine.tokens(name) == reference(prompt, 6)


def test_a_plan_that_is_not_taken_fails_in_its_turn() -> None:
    engine = Driver(Queueing)
    for name, prompt in PROMPTS.items():
        engine.add(name, prompt)
    engine.step()
    engine.executor.refusing = 1
    engine.drain()
    for name, prompt in PROMPTS.items():
        assert engine.tokens(name) == reference(prompt, 6)
    assert engine.core.stats().num_failed_steps == 1


def test_a_step_behind_one_that_failed_in_the_thread_is_not_begun() -> None:
    begun = threading.Event()
    told = threading.Event()
    executed: list[int] = []

    class Failing(FakeExecutor):
        def execute(self, plan: StepPlan) -> StepResult:
            executed.append(plan.total_num_tokens)
            if plan.total_num_tokens == 1:
                begun.set()
                told.wait(10)
                raise RuntimeError("failed")
            return StepResult()

    config = make_config(options={})
    queue = step_queue(Failing(config), ahead=True)
    first = queue.submit(StepPlan(total_num_tokens=1))
    second = queue.submit(StepPlan(total_num_tokens=2))
    begun.wait(10)
    told.set()
    with pytest.raises(RuntimeError, match="failed"):
        queue.result(first)
    with pytest.raises(RuntimeError, match="the step before this one failed"):
        queue.result(second)
    queue.give_up()
    queue.result(queue.submit(StepPlan(total_num_tokens=3)))
    queue.close()
    assert executed == [1, 3]


@pytest.mark.parametrize("kind", [FakeExecutor, Queueing, Lazy])
@pytest.mark.parametrize("computed", [False, True])
def test_an_interrupt_while_steps_are_in_flight_costs_nobody_anything(
    kind: type[FakeExecutor], computed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """computed: whether the step that is waited for has been computed when the user interrupts."""
    engine = Driver(kind)
    for name, prompt in PROMPTS.items():
        engine.add(name, prompt)
    engine.step(2)
    result = engine.core.queue.result

    def interrupted(ticket: object) -> StepResult:
        if computed:
            result(ticket)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.core.queue, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step(3)
    monkeypatch.undo()
    engine.drain()
    for name, prompt in PROMPTS.items():
        assert engine.tokens(name) == reference(prompt, 6)


class Recording(FakeExecutor):
    """Keeps how many tokens each plan had."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.sizes: list[int] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.sizes.append(plan.total_num_tokens)
        return super().execute(plan)


class Lockstep(Recording):
    lockstep = True


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("kind", [Recording, Lockstep])
def test_only_executors_in_lockstep_get_plans_that_compute_nothing(kind: type[Recording], ahead: bool) -> None:
    """The last token of a sequence in flight leaves nothing to plan ahead; a prompt that is too long never does."""
    engine = Driver(kind, ahead=ahead)
    engine.add("a", [1, 2, 3], 4)
    engine.drain()
    engine.add("too long", list(range(70)))
    engine.drain()
    assert engine.tokens("a") == reference([1, 2, 3], 4)
    assert "The prompt has 70 tokens" in str(engine.outputs["too long"][-1].stop_reason)
    sizes = engine.executor.sizes
    assert [size for size in sizes if size] == [3, 1, 1, 1]
    # Every worker hears that the sequence has left.
    assert sizes.count(0) > 1 if kind is Lockstep else sizes.count(0) == 1
