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
    always._propose = lambda tokens, count, propose=always._propose: propose(tokens, 3)
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


def test_drafts_shrink_with_the_token_budget():
    scheduler = make_scheduler(num_speculative_tokens=4, max_num_batched_tokens=6)
    for name in "ab":
        scheduler.add(make_request(name, [1, 2, 3], 20))
    proposed = {0: 4, 1: 4}
    scheduler.finish(scheduler.schedule(), sampled([0, 1], [7, 7], num_proposed=proposed))
    plan = scheduler.schedule().plan
    assert plan.slots.tolist() == [0, 1]
    assert plan.query_lens.tolist() == [5, 1]
    assert plan.num_drafts == {0: 4}


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
