"""Planning and reading sequences as arrays gives what one after the other gives."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler.fake_model import EOS, Client, FakeExecutor, make_request, make_scheduler, reference

from core_kit.devices.wired import WiredExecutor

SHARED = [random.Random(2).randrange(40) for _ in range(20)]


def described(plan):
    """A plan as plain values."""
    new = [(n.slot, n.request.key, n.output_token_ids, n.num_computed_tokens, n.block_ids) for n in plan.new]
    columns = [column.tolist() for column in (plan.slots, plan.query_lens, plan.num_computed)]
    return columns, new, plan.new_block_ids, plan.removed, plan.total_num_tokens


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(
    seed=st.integers(0, 10**6),
    block_size=st.sampled_from([1, 3, 4]),
    num_tokens=st.integers(48, 160),
    budget=st.sampled_from([3, 9, 64]),
    mixed=st.sampled_from([0, 5]),
    seats=st.integers(1, 8),
    policy=st.sampled_from(["fcfs", "priority", "fair"]),
)
def test_both_ways_give_the_same_plans_and_outputs(seed, block_size, num_tokens, budget, mixed, seats, policy):
    rng = random.Random(seed)
    num_blocks = 2 + num_tokens // block_size
    limits = {
        "max_num_seqs": seats,
        "max_num_batched_tokens": budget,
        "max_num_mixed_batched_tokens": mixed,
        "queued_prompts_weight": 2.0,
        "max_model_len": 40,
        "policy": policy,
    }
    schedulers = [make_scheduler(num_blocks, block_size, vectorized=way, **limits) for way in (True, False)]
    executors = [FakeExecutor(num_blocks, block_size), WiredExecutor(FakeExecutor(num_blocks, block_size))]
    sides = [(scheduler, executor, Client()) for scheduler, executor in zip(schedulers, executors, strict=True)]
    requests = []
    for number in range(14):
        prompt = SHARED[: rng.randint(0, 20)] + [rng.randrange(40) for _ in range(rng.randint(1, 6))]
        eos = [EOS, 1] if rng.random() < 0.5 else []
        options = {"eos": eos, "priority": rng.randint(0, 2), "user": rng.choice("ab"), "handle": number}
        requests.append((f"r{number}", prompt, rng.randint(1, 20), options))
    arrivals = [rng.randint(0, 30) for _ in requests]
    for step in range(400):
        for arrival, (name, prompt, count, options) in zip(arrivals, requests, strict=True):
            if arrival == step:
                for scheduler, _, client in sides:
                    client.keys[options["handle"]] = name, 0
                    scheduler.add(make_request(name, prompt, count, **options))
        steps = [scheduler.schedule() for scheduler, _, _ in sides]
        assert described(steps[0].plan) == described(steps[1].plan)
        for planned, (scheduler, executor, client) in zip(steps, sides, strict=True):
            client.receive(scheduler.finish(planned, executor.execute(planned.plan)))
            scheduler.check_integrity()
    assert sides[0][2].tokens == sides[1][2].tokens
    assert {key: last.finish_reason for key, last in sides[0][2].last.items()} == {
        key: last.finish_reason for key, last in sides[1][2].last.items()
    }
    for name, prompt, count, options in requests:
        assert sides[0][2].tokens[name, 0] == reference(make_request(name, prompt, count, **options), 40)[0]


def test_plain_tokens_leave_as_columns_and_the_rest_as_records():
    scheduler, executor = make_scheduler(), FakeExecutor()
    free = reference(make_request("x", [1, 2], 10))[0]
    scheduler.add(make_request("plain", [1, 2], 10, handle=70))
    scheduler.add(make_request("scored", [1, 3], 10, handle=71, logprobs=0))
    scheduler.add(make_request("unnamed", [1, 4], 10))
    for _ in range(3):
        step = scheduler.schedule()
        outputs = scheduler.finish(step, executor.execute(step.plan))
    assert list(outputs.tokens) == [(70, 2, free[2])]
    assert {record.request_id for record in outputs.records} == {"scored", "unnamed"}
    assert all(record.start == 2 and len(record.token_ids) == 1 for record in outputs.records)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_token_ids_may_be_of_either_width(kind):
    scheduler, executor = make_scheduler(), FakeExecutor()
    scheduler.add(make_request("a", [1, 2], 5, handle=3))
    step = scheduler.schedule()
    scheduler.finish(step, executor.execute(step.plan))
    step = scheduler.schedule()
    result = executor.execute(step.plan)
    result.token_ids = result.token_ids.astype(kind)
    ((handle, start, token),) = scheduler.finish(step, result).tokens
    assert (handle, start, token) == (3, 1, reference(make_request("a", [1, 2], 5))[0][1])
