"""The number of drafts that is chosen each step, on machines whose times are known and a clock that only they move."""

import sys
from collections import Counter
from types import FrameType

import pytest
from scheduler.fake_model import FakeExecutor, make_request, make_scheduler, reference
from scheduler.test_step_cost import MACHINES, Machine
from speculative.drafting_machine import DraftBench, always

from core.api.config import SchedulerConfig
from core.api.sequence_record import NO_DRAFTS_CAUSES
from core.engine import scheduling
from core_speculative.adaptive.control import AdaptiveAdvice
from tests.inside import state_of

CPU = MACHINES["two cores"]


def seconds(
    machine: Machine, batch: int, accuracy: float, most: int = 5, tokens: int = 256, **options: object
) -> float:
    """Of a batch of requests for so many tokens each."""
    bench = DraftBench(machine, always(accuracy), num_speculative_tokens=most, **options)
    for number in range(batch):
        bench.add(number, tokens)
    return bench.run()


@pytest.mark.parametrize(("name", "batch"), [*((name, 1) for name in MACHINES), ("two cores", 16)])
def test_drafts_that_fail_cost_a_batch_two_percent_at_most(name: str, batch: int) -> None:
    machine = MACHINES[name]
    alone = seconds(machine, batch, 0.0, most=0)
    assert seconds(machine, batch, 0.0, noise=0.05, propose=0.002 * machine.step) <= 1.02 * alone


def test_drafts_that_are_seldom_right_are_no_slower_where_rows_cost_much() -> None:
    slow = MACHINES["one slow core"]
    alone = seconds(slow, 4, 0.0, most=0)
    assert seconds(slow, 4, 0.2, adaptive_drafts=False) > 1.5 * alone
    assert seconds(slow, 4, 0.2) <= 1.03 * alone


@pytest.mark.parametrize(("accuracy", "gain"), [(0.8, 2.2), (1.0, 4.0)])
def test_drafts_that_are_right_bring_nearly_what_they_can(accuracy: float, gain: float) -> None:
    alone = seconds(CPU, 1, 0.0, most=0)
    chosen = seconds(CPU, 1, accuracy, noise=0.05)
    always_most = seconds(CPU, 1, accuracy, adaptive_drafts=False)
    assert chosen <= alone / gain
    assert chosen <= 1.1 * always_most


def test_proposing_that_takes_too_long_is_given_up_although_all_drafts_are_right() -> None:
    alone = seconds(CPU, 1, 0.0, most=0, tokens=400)
    slow = seconds(CPU, 1, 1.0, tokens=400, propose=20 * CPU.step, adaptive_drafts=False)
    assert slow > 3 * alone
    bench = DraftBench(CPU, always(1.0), num_speculative_tokens=5, propose=20 * CPU.step)
    bench.add(0, 400)
    bench.run()
    asked = sum(budget > 0 for budget in bench.budgets)
    assert asked <= 2


def test_drafts_come_back_when_the_text_changes() -> None:
    bench = DraftBench(CPU, lambda first, length: 0.0 if length < 600 else 1.0, num_speculative_tokens=5)
    bench.add(0, 1200)
    bench.run()
    lately = bench.budgets[-40:]
    assert sum(budget == 5 for budget in lately) > 20
    assert sum(budget > 0 for budget in bench.budgets[100:500]) < 30


def test_a_sequence_with_good_drafts_has_them_beside_others_without() -> None:
    bench = DraftBench(CPU, lambda first, length: 1.0 if first == 2 else 0.0, num_speculative_tokens=4)
    for number in range(4):
        bench.add(number, 300, first=2 if number == 0 else 1)
    budgets: Counter[int] = Counter()
    while bench.scheduler.has_unfinished():
        bench.step()
        for slot, held in bench.executor.held.items():
            budgets[held.token_ids[0]] += state_of(bench.scheduler).drafts.advice.budget(slot)
    assert budgets[2] > 100
    assert budgets[1] < budgets[2] / 2


def calls_of_a_step(batch: int, **options: object) -> int:
    """Python functions that planning and reading a step enter once drafts were given up; the most of some steps."""
    bench = DraftBench(CPU, always(0.0), **options)
    for number in range(batch):
        bench.add(number, 200)
    for _ in range(90):
        bench.step()
    found: list[int] = []
    count = 0

    def count_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    for _ in range(8):
        count = 0
        sys.setprofile(count_call)
        step = bench.scheduler.schedule()
        sys.setprofile(None)
        assert not step.plan.draft_budget
        result = bench.executor.execute(step.plan)
        bench.now += 0.01
        sys.setprofile(count_call)
        bench.scheduler.finish(step, result)
        sys.setprofile(None)
        found.append(count)
    return sorted(found)[len(found) // 2]


def test_a_step_without_drafts_makes_a_few_calls_more_and_none_a_sequence() -> None:
    few = calls_of_a_step(2, num_speculative_tokens=5) - calls_of_a_step(2, num_speculative_tokens=0)
    many = calls_of_a_step(16, num_speculative_tokens=5) - calls_of_a_step(16, num_speculative_tokens=0)
    assert few == many <= 26


def test_a_step_without_drafts_repeats_the_batch_and_asks_for_none() -> None:
    bench = DraftBench(CPU, always(0.0), num_speculative_tokens=5)
    bench.add(0, 300)
    for _ in range(200):
        bench.step()
    assert bench.scheduler.schedule().plan.same_batch
    assert bench.executor.times_asked < 30


def test_tokens_are_those_without_drafts_whatever_is_chosen() -> None:
    requests = [make_request(f"r{number}", [number, 7], 90) for number in range(6)]
    bench = DraftBench(CPU, always(0.5), share=0.6, num_speculative_tokens=4, noise=0.3, num_blocks=64, max_num_seqs=4)
    for request in requests:
        bench.scheduler.add(request)
    bench.run()
    assert {request.key: bench.client.tokens[request.key] for request in requests} == {
        request.key: reference(request, 4000)[0] for request in requests
    }
    stats = bench.scheduler.stats()
    assert stats.spec_steps_off and stats.spec_steps_on
    assert sum(stats.spec_accepted_by_place) == stats.spec_num_accepted_tokens > 0


def ordered(**limits: object) -> list[dict[int, int]]:
    """The budgets of the steps of five requests, one coming after the other."""
    scheduler = make_scheduler(256, num_speculative_tokens=3, **limits)
    executor = FakeExecutor(256, accuracy=0.0)
    found: list[dict[int, int]] = []
    for number in range(5):
        scheduler.add(make_request(f"r{number}", [number, 3], 60))
        step = scheduler.schedule()
        found.append(dict(step.plan.draft_budget))
        scheduler.finish(step, executor.execute(step.plan))
    return found


def test_new_requests_start_without_drafts_when_there_are_many() -> None:
    budgets = ordered(disable_drafts_by_batch_size=2)
    assert [len(budget) for budget in budgets] == [1, 2, 2, 2, 2]
    assert len(ordered()[-1]) == 5


def test_the_size_of_the_batch_limits_drafts() -> None:
    budgets = ordered(drafts_by_batch_size=((1, 2, 2), (3, 64, 0)))
    assert [max(budget.values(), default=0) for budget in budgets] == [3, 2, 2, 0, 0]


def test_a_sequence_beyond_what_the_draft_sees_has_no_drafts() -> None:
    scheduler = make_scheduler(num_speculative_tokens=3, draft_max_model_len=12)
    executor = FakeExecutor(accuracy=0.0)
    scheduler.add(make_request("a", [1, 2], 40))
    budgets: list[int] = []
    while scheduler.has_unfinished():
        step = scheduler.schedule()
        budgets.append(step.plan.draft_budget.get(0, 0))
        scheduler.finish(step, executor.execute(step.plan))
    assert budgets[:9] == [3, 3, 3, 3, 3, 3, 3, 2, 1]
    assert not any(budgets[9:])


def test_a_request_is_told_why_it_had_no_drafts() -> None:
    bench = DraftBench(CPU, always(0.0), num_speculative_tokens=5)
    request = make_request("a", [1, 2], 100)
    request.explain = True
    bench.scheduler.add(request)
    bench.run()
    record = bench.client.last[request.key].record
    assert record is not None and record.drafts_off == NO_DRAFTS_CAUSES["cost"]


def test_the_engine_finds_the_choice_and_says_when_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = SchedulerConfig(num_speculative_tokens=3, adaptive_drafts=True)
    assert scheduling.find_advice(wanted) is AdaptiveAdvice
    assert scheduling.find_advice(SchedulerConfig(num_speculative_tokens=3)) is None
    assert not caplog.records
    monkeypatch.setattr(scheduling, "load", lambda group, name, usual: None)
    assert scheduling.find_advice(wanted) is None
    assert "Every step drafts 3 tokens a sequence" in caplog.text and "core-engine-speculative" in caplog.text


def test_without_the_choice_every_sequence_has_the_largest_number_of_drafts() -> None:
    bench = DraftBench(CPU, always(0.0), num_speculative_tokens=5, advise=None)
    bench.add(0, 40)
    bench.run()
    assert bench.budgets[:30] == [5] * 30
    assert not bench.scheduler.stats().spec_steps_off
