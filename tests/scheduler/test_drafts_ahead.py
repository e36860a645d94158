"""Drafts in steps that are planned before the results of earlier ones: any pattern of acceptance gives the same tokens."""

import random
from collections import deque

import numpy as np
import pytest
from scheduler.fake_model import Client, FakeExecutor, make_request, make_scheduler, reference

from core.api.messages import EngineRequest
from core.api.step_plan import StepResult
from core.api.structured_outputs import CompiledGrammar
from core.scheduler.scheduler import Scheduler
from core.scheduler.step import Step
from core_kit.devices.wired import WiredExecutor
from tests.inside import state_of

PROMPT = [3, 1, 4, 1, 5]
MAX_LENGTH = 40
GRAMMAR = CompiledGrammar("regex", "key", b"")


class Pipeline:
    """A scheduler whose steps are computed at once and read later.

    pending: steps and their results, the oldest first.
    num_verified: rows with drafts that were computed.
    failed: keys of sequences that ended because their step failed.
    """

    def __init__(self, scheduler: Scheduler, executor: FakeExecutor | WiredExecutor) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.client = Client()
        self.pending: deque[tuple[Step, StepResult]] = deque()
        self.num_verified = 0
        self.failed: set[tuple[str, int]] = set()

    def step(self) -> Step:
        """Plan and compute one step; read the oldest one when no further may be planned."""
        step = self.scheduler.schedule()
        if step.is_idle:
            if self.pending:
                self.read()
            self.client.receive(self.scheduler.finish(step, StepResult()))
        else:
            result = self.executor.execute(step.plan)
            self.num_verified += len(result.num_verified)
            self.pending.append((step, result))
        while len(self.pending) >= self.scheduler.max_in_flight:
            self.read()
        self.scheduler.check_integrity()
        return step

    def read(self) -> None:
        """Take the result of the oldest step in."""
        step, result = self.pending.popleft()
        self.client.receive(self.scheduler.finish(step, result))

    def fail(self) -> None:
        """The oldest step fails, after the executor has heard of all that are in flight."""
        oldest, _ = self.pending[0]
        for step, _ in self.pending:
            self.executor.maybe_gone.update(step.plan.removed)
        self.pending.clear()
        outputs = self.scheduler.fail(oldest, "poisoned")
        self.failed.update((output.request_id, output.choice) for output in outputs.records)
        self.scheduler.check_integrity()

    def finish(self) -> None:
        """Everything to its end; nothing may be left behind."""
        for _ in range(5000):
            if not (self.pending or self.scheduler.has_unfinished()):
                break
            self.step()
        assert not self.pending and not self.scheduler.has_unfinished()
        assert not self.executor.held
        assert self.scheduler.stats().kv_cache_usage == 0.0


def random_pipeline(rng: random.Random) -> Pipeline:
    block_size = rng.choice([1, 3, 4, 16])
    num_blocks = 2 + rng.randint(48, 160) // block_size
    scheduler = make_scheduler(
        num_blocks,
        block_size,
        max_num_seqs=rng.randint(1, 6),
        max_num_batched_tokens=rng.choice([3, 9, 64]),
        max_model_len=MAX_LENGTH,
        policy=rng.choice(["fcfs", "priority", "fair"]),
        prefix_caching=rng.random() < 0.8,
        num_speculative_tokens=rng.choice([0, 1, 3, 6]),
        async_scheduling=True,
        max_in_flight=rng.choice([2, 2, 3, 4]),
    )
    executor = FakeExecutor(num_blocks, block_size, accuracy=rng.choice([0.0, 0.5, 0.9, 1.0]), seed=rng.random())
    return Pipeline(scheduler, WiredExecutor(executor) if rng.random() < 0.3 else executor)


def random_requests(rng: random.Random, count: int) -> list[EngineRequest]:
    requests = []
    for number in range(count):
        prompt = [rng.randrange(4) for _ in range(rng.randint(1, 25))]
        ends = [0, 1] if rng.random() < 0.4 else []
        request = make_request(f"r{number}", prompt, rng.randint(1, 30), eos=ends, priority=rng.randint(0, 2))
        if rng.random() < 0.3:
            request.grammar = GRAMMAR
        requests.append(request)
    return requests


@pytest.mark.parametrize("seed", range(15))
def test_any_acceptance_gives_the_same_tokens_and_leaks_no_block(seed: int) -> None:
    run_anything(seed)


@pytest.mark.slow
def test_ten_thousand_rows_with_drafts() -> None:
    num_verified = 0
    seed = 100
    while num_verified < 10_000:
        num_verified += run_anything(seed)
        seed += 1


def run_anything(seed: int) -> int:
    """Aborts, preemptions, stop tokens, prefix hits, forced text and failing steps. Returns how many rows had drafts."""
    rng = random.Random(seed)
    pipeline = random_pipeline(rng)
    scheduler = pipeline.scheduler
    requests = random_requests(rng, 30)
    waiting = list(requests)
    aborted: set[tuple[str, int]] = set()
    while waiting:
        for _ in range(rng.choice([1, 1, 4])):
            if waiting:
                scheduler.add(waiting.pop())
        for _ in range(rng.choice([0, 1, 5])):
            pipeline.step()
        if rng.random() < 0.05:
            request = rng.choice(requests)
            last = pipeline.client.last.get(request.key)
            if request not in waiting and (last is None or last.finish_reason is None):
                scheduler.abort([request.request_id])
                aborted.add(request.key)
        if pipeline.pending and rng.random() < 0.1:
            pipeline.fail()
    pipeline.finish()
    for request in requests:
        if request.key not in aborted | pipeline.failed:
            output, reason, _ = reference(request, state_of(scheduler).limits.max_length)
            assert pipeline.client.tokens[request.key] == output
            assert pipeline.client.last[request.key].finish_reason == reason
    return pipeline.num_verified


def test_right_drafts_save_steps_ahead_as_well() -> None:
    """k drafts a step give k + 1 tokens a step, whether the result of the one before is there or not."""
    request = make_request("a", PROMPT, 40)
    steps = []
    for max_in_flight in (1, 2):
        executor = FakeExecutor(accuracy=1.0)
        executor.random.randint = lambda low, high: high
        scheduler = make_scheduler(num_speculative_tokens=3, max_in_flight=max_in_flight)
        pipeline = Pipeline(scheduler, executor)
        scheduler.add(request)
        computed = 0
        while scheduler.has_unfinished():
            computed += pipeline.step().plan.total_num_tokens > 0
        assert pipeline.client.tokens[request.key] == reference(request)[0]
        steps.append(computed)
    assert steps[0] <= steps[1] <= steps[0] + 1  # one more is in flight when the last token comes


def test_a_sequence_that_may_have_ended_is_planned_and_computes_nothing() -> None:
    """The step behind the prompt's gives all tokens that are left, which the next plan cannot know."""
    executor = FakeExecutor(accuracy=1.0)
    executor.random.randint = lambda low, high: high
    scheduler = make_scheduler(num_speculative_tokens=4)
    scheduler.add(make_request("a", PROMPT, 4))
    pipeline = Pipeline(scheduler, executor)
    pipeline.step()
    pipeline.step()
    before = executor.num_computed_tokens
    third = pipeline.step()
    assert third.plan.num_drafts == {0: 1}
    assert third.plan.total_num_tokens == 2
    assert executor.num_computed_tokens == before
    pipeline.finish()
    assert len(pipeline.client.tokens["a", 0]) == 4


def test_too_few_blocks_cost_drafts_before_they_cost_sequences() -> None:
    """Both sequences fit exactly; only the room for what drafts may add is missing."""
    scheduler = make_scheduler(num_blocks=9, block_size=4, num_speculative_tokens=6, max_model_len=17)
    pipeline = Pipeline(scheduler, FakeExecutor(9, 4, accuracy=0.0))
    requests = [make_request(name, [number] * 5, 12) for number, name in enumerate("ab")]
    for request in requests:
        scheduler.add(request)
    pipeline.finish()
    assert scheduler.stats().num_preemptions == 0
    assert all(pipeline.client.tokens[request.key] == reference(request, 17)[0] for request in requests)


def test_states_come_back_from_drafts_before_the_next_plan() -> None:
    """A plan of a model with states says from which state a sequence goes on."""
    scheduler = make_scheduler(states=True, num_speculative_tokens=3)
    assert scheduler.max_in_flight == 1
    without = make_scheduler(states=True)
    assert without.max_in_flight == 2


def test_forced_text_that_a_step_has_passed_is_planned_for_and_not_missed() -> None:
    """The worker tells of forced text when the next step is planned already; then it turns out that there is no more of it."""
    scheduler = make_scheduler(max_in_flight=2)
    request = make_request("a", PROMPT, 6)
    request.grammar = GRAMMAR
    scheduler.add(request)
    slots = np.array([0], np.int32)
    first, second = scheduler.schedule(), scheduler.schedule()
    scheduler.finish(first, StepResult(slots, np.array([7], np.int32), num_proposed={0: 4}))
    scheduler.check_integrity()
    scheduler.finish(second, StepResult(slots, np.array([8], np.int32)))
    scheduler.check_integrity()
    third = scheduler.schedule()
    assert third.plan.num_drafts == {0: 3}  # the last of six tokens is none of them
    scheduler.finish(third, StepResult(slots, np.array([9], np.int32)))
    scheduler.check_integrity()
    fourth = scheduler.schedule()
    assert not fourth.plan.num_drafts
    assert fourth.plan.num_computed.tolist() == [len(PROMPT) + 2]


def test_a_batch_without_drafts_is_planned_at_once_although_drafts_are_possible() -> None:
    """The step behind one that verified drafts, when nobody proposed any and none are wanted."""
    scheduler = make_scheduler(max_in_flight=1)
    request = make_request("a", PROMPT, 20)
    request.grammar = GRAMMAR
    scheduler.add(request)
    slots = np.array([0], np.int32)
    scheduler.finish(scheduler.schedule(), StepResult(slots, np.array([7], np.int32), num_proposed={0: 2}))
    step = scheduler.schedule()
    assert step.plan.num_drafts == {0: 2}
    assert not step.one_each
    scheduler.finish(step, StepResult(slots, np.array([8], np.int32), {0: [9]}, num_verified={0: 2}))
    step = scheduler.schedule()
    assert step.one_each
    assert step.plan.num_computed.tolist() == [len(PROMPT) + 2]
