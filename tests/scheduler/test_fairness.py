"""The fair policy: how long a heavy user can hold up a light one, and how far two busy users drift apart."""

import random

import pytest
from scheduler.fake_model import FakeExecutor, make_request, make_scheduler, run

from core_policies.fair.policy import OUTPUT_WEIGHT, PROMPT_WEIGHT, FairPolicy
from tests.inside import state_of


def admitted(plan):
    return [new.request.user for new in plan.new]


@pytest.mark.parametrize("num_queued", [10, 1000])
def test_a_light_user_waits_for_at_most_one_admission_of_a_heavy_one(num_queued):
    scheduler, executor = make_scheduler(policy="fair", max_num_seqs=2), FakeExecutor()
    for number in range(num_queued):
        scheduler.add(make_request(f"h{number}", [1, 2, 3], 4, user="heavy"))
    for _ in range(20):
        step = scheduler.schedule()
        scheduler.finish(step, executor.execute(step.plan))
    for number in range(5):
        scheduler.add(make_request(f"light{number}", [4, 5], 3, user="light"))
    order = []
    while "light" not in order:
        step = scheduler.schedule()
        order += admitted(step.plan)
        scheduler.finish(step, executor.execute(step.plan))
    assert order.count("heavy") <= 1


def test_under_fcfs_the_light_user_waits_for_all():
    scheduler, executor = make_scheduler(max_num_seqs=2), FakeExecutor()
    for number in range(50):
        scheduler.add(make_request(f"h{number}", [1, 2, 3], 2, user="heavy"))
    scheduler.add(make_request("light", [4, 5], 2, user="light"))
    order = []
    while scheduler.has_unfinished():
        step = scheduler.schedule()
        order += admitted(step.plan)
        scheduler.finish(step, executor.execute(step.plan))
    assert order.index("light") == 50


@pytest.mark.parametrize("seed", range(5))
def test_busy_users_get_equal_service_within_the_bound(seed):
    rng = random.Random(seed)
    scheduler, executor = (
        make_scheduler(200, policy="fair", max_num_seqs=4, max_num_batched_tokens=16),
        FakeExecutor(200),
    )
    longest_prompt, longest_output = 12, 16
    had = {"a": 0, "b": 0}
    owners = {}
    for number in range(600):
        # a asks for much at a time, b for little; both always wait.
        user = "ab"[number % 2]
        prompt = [rng.randrange(40) for _ in range(longest_prompt if user == "a" else 2)]
        owners[f"r{number}"] = user
        scheduler.add(make_request(f"r{number}", prompt, longest_output if user == "a" else 2, user=user))
    bound = 2 * max(PROMPT_WEIGHT * longest_prompt, OUTPUT_WEIGHT * 4 * (longest_prompt + longest_output))
    widest = 0
    for _ in range(250):
        step = scheduler.schedule()
        for new in step.plan.new:
            had[new.request.user] += PROMPT_WEIGHT * (len(new.request.prompt_token_ids) - new.num_computed_tokens)
        for output in scheduler.finish(step, executor.execute(step.plan)).records:
            had[owners[output.request_id]] += OUTPUT_WEIGHT * len(output.token_ids)
        widest = max(widest, abs(had["a"] - had["b"]))
    assert scheduler.stats().num_waiting > 0
    assert 0 < widest <= bound
    assert sum(had.values()) > 3 * bound, "the bound means something"


def test_a_user_who_was_away_has_not_saved_up():
    scheduler, executor = make_scheduler(policy="fair", max_num_seqs=1), FakeExecutor()
    for number in range(30):
        scheduler.add(make_request(f"a{number}", [1, 2, 3, 4], 4, user="a"))
    for _ in range(60):
        step = scheduler.schedule()
        scheduler.finish(step, executor.execute(step.plan))
    for number in range(30):
        scheduler.add(make_request(f"b{number}", [1, 2, 3, 4], 4, user="b"))
    order = []
    while len(order) < 12:
        step = scheduler.schedule()
        order += admitted(step.plan)
        scheduler.finish(step, executor.execute(step.plan))
    assert 5 <= order.count("a") <= 7


def test_choices_of_one_user_stay_in_order_and_everything_ends():
    scheduler = make_scheduler(policy="fair", max_num_seqs=2)
    for number in range(12):
        scheduler.add(make_request(f"r{number}", [number], 3, user="abc"[number % 3]))
    client = run(scheduler, FakeExecutor())
    assert len(client.tokens) == 12


def test_users_who_left_are_forgotten():
    policy = FairPolicy()
    queue = policy.make_queue()
    scheduler, executor = make_scheduler(policy="fair"), FakeExecutor()
    state_of(scheduler).policy, state_of(scheduler).roster.waiting = policy, queue
    for number in range(2000):
        scheduler.add(make_request(f"r{number}", [1, 2], 1, user=f"user{number}"))
        step = scheduler.schedule()
        scheduler.finish(step, executor.execute(step.plan))
    assert len(policy.counters) < 200
