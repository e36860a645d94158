"""Drafts change how many steps it takes, never the tokens."""

import numpy as np
import pytest
from scheduler.fake_model import FakeExecutor, make_request, make_scheduler, reference, run

from core.api.step_plan import StepResult

PROMPT = [3, 1, 4, 1, 5]

pytestmark = pytest.mark.usefixtures("also_wired")


def sampled(slots, token_ids, **more):
    return StepResult(np.array(slots, np.int32), np.array(token_ids, np.int32), **more)


def count_steps(scheduler, executor, request):
    scheduler.add(request)
    tokens, steps = [], 0
    while scheduler.has_unfinished():
        step = scheduler.schedule()
        for output in scheduler.finish(step, executor.execute(step.plan)).records:
            tokens += output.token_ids
        scheduler.check_integrity()
        steps += bool(step.plan.total_num_tokens)
    assert tokens == reference(request)[0]
    return steps


def test_right_drafts_save_steps_and_wrong_ones_cost_none():
    request = make_request("a", PROMPT, 40)
    always = FakeExecutor(accuracy=1.0)
    always.propose = lambda tokens, count, right=always.propose: right(tokens, 3)
    scheduler = make_scheduler(num_speculative_tokens=3)
    assert count_steps(scheduler, always, request) <= 13
    stats = scheduler.stats()
    assert stats.spec_num_accepted_tokens == stats.spec_num_draft_tokens > 0
    never = make_scheduler(num_speculative_tokens=3)
    assert count_steps(never, FakeExecutor(accuracy=0.0), request) == 40
    assert never.stats().spec_num_accepted_tokens == 0
    assert never.stats().spec_num_drafts > 0


def test_the_budget_respects_what_may_still_be_generated():
    scheduler, executor = make_scheduler(num_speculative_tokens=4), FakeExecutor(accuracy=0.0)
    scheduler.add(make_request("a", PROMPT, 6))
    budgets = []
    while scheduler.has_unfinished():
        step = scheduler.schedule()
        budgets.append(step.plan.draft_budget.get(0, 0))
        scheduler.finish(step, executor.execute(step.plan))
    assert budgets[:6] == [4, 3, 2, 1, 0, 0]


def test_proposals_beyond_the_budget_are_cut():
    scheduler = make_scheduler(num_speculative_tokens=2)
    scheduler.add(make_request("a", PROMPT, 20))
    scheduler.finish(scheduler.schedule(), sampled([0], [7], num_proposed={0: 4}))
    plan = scheduler.schedule().plan
    assert plan.num_drafts[0] == 2
    assert plan.query_lens.tolist() == [3]


def test_sequences_share_the_token_budget_for_drafts():
    scheduler = make_scheduler(num_speculative_tokens=4, max_num_batched_tokens=6)
    for name in "ab":
        scheduler.add(make_request(name, [1, 2, 3], 20))
    proposed = {0: 4, 1: 4}
    scheduler.finish(scheduler.schedule(), sampled([0, 1], [7, 7], num_proposed=proposed))
    plan = scheduler.schedule().plan
    assert plan.slots.tolist() == [0, 1]
    assert plan.query_lens.tolist() == [3, 3]
    assert plan.num_drafts == {0: 2, 1: 2}


@pytest.mark.parametrize("accuracy", [0.0, 0.6, 1.0])
def test_drafts_of_the_first_sequences_leave_the_others_their_tokens(accuracy):
    """Eight sequences with seven drafts each want four times the budget: each gets a token in every step all the same."""
    scheduler = make_scheduler(256, max_num_batched_tokens=16, max_model_len=400, num_speculative_tokens=7)
    executor = FakeExecutor(256, accuracy=accuracy)
    for number in range(8):
        scheduler.add(make_request(f"r{number}", [1, number], 60))
    started, ended = set(), False
    while not ended:
        step = scheduler.schedule()
        records = scheduler.finish(step, executor.execute(step.plan)).records
        assert len(started) < 8 or len(records) == 8
        started |= {output.request_id for output in records if output.token_ids}
        ended = any(output.finish_reason for output in records)


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "begun"])
def test_drafts_leave_a_prompt_its_share(waits):
    """A prompt that waits, or has begun, goes on while the others' drafts could use the whole budget."""
    scheduler = make_scheduler(256, max_num_batched_tokens=16, max_model_len=400, num_speculative_tokens=7)
    executor = FakeExecutor(256, accuracy=0.0)
    for number in range(7):
        scheduler.add(make_request(f"r{number}", [1, number], 200))
    step = scheduler.schedule()
    scheduler.finish(step, executor.execute(step.plan))
    prompt = make_request("prompt", [2] * (3 if waits else 40), 2)
    scheduler.add(prompt)
    tokens = []
    for _ in range(20):
        step = scheduler.schedule()
        records = scheduler.finish(step, executor.execute(step.plan)).records
        tokens += [token for output in records if output.request_id == "prompt" for token in output.token_ids]
    assert tokens == reference(prompt, 400)[0]


def test_more_tokens_than_drafts_allow_is_an_error_of_that_sequence():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", PROMPT, 20))
    (output,) = scheduler.finish(scheduler.schedule(), sampled([0], [7], more_token_ids={0: [8]})).records
    assert output.finish_reason == "error"
    assert "more tokens than were proposed" in output.stop_reason


@pytest.mark.parametrize("num_blocks", [6, 7])
def test_drafts_fit_even_when_the_cache_is_exactly_full(num_blocks):
    scheduler = make_scheduler(num_blocks=num_blocks, num_speculative_tokens=5, max_model_len=21)
    requests = [make_request(name, [number] * 6, 30) for number, name in enumerate("abc")]
    for request in requests:
        scheduler.add(request)
    client = run(scheduler, FakeExecutor(num_blocks, accuracy=0.7))
    assert all(client.tokens[request.key] == reference(request, 21)[0] for request in requests)
