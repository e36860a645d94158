"""Who runs when: budget, chunks, seats, order, preemption, refusal, abort."""

import pytest
from scheduler.fake_model import Client, FakeExecutor, make_request, make_scheduler, reference, run
from scheduler.fake_model import planned_step as step

from core.api.errors import RequestError
from core.api.step_plan import StepResult
from core.kv.integrity import IntegrityError

pytestmark = pytest.mark.usefixtures("also_wired")


def test_a_single_request_gets_the_reference_tokens():
    scheduler, request = make_scheduler(), make_request("a", [5, 6, 7], 10)
    scheduler.add(request)
    client = run(scheduler, FakeExecutor())
    assert client.tokens["a", 0] == reference(request)[0]
    assert client.last["a", 0].finish_reason == "length"


def test_running_sequences_go_before_waiting_ones():
    scheduler, executor = make_scheduler(max_num_batched_tokens=10), FakeExecutor()
    scheduler.add(make_request("a", [1] * 9))
    assert step(scheduler, executor)[1] == {"a": 9}
    scheduler.add(make_request("b", [2] * 30))
    assert step(scheduler, executor)[1] == {"a": 1, "b": 9}
    assert step(scheduler, executor)[1] == {"a": 1, "b": 9}


def test_long_prompts_are_cut_at_the_threshold_so_short_ones_start():
    scheduler = make_scheduler(long_prefill_token_threshold=6)
    scheduler.add(make_request("long", [1] * 20))
    scheduler.add(make_request("short", [2] * 5))
    assert step(scheduler, FakeExecutor())[1] == {"long": 6, "short": 5}


def test_without_chunks_a_prompt_is_computed_whole():
    scheduler, executor, client = (
        make_scheduler(enable_chunked_prefill=False, max_num_batched_tokens=8),
        FakeExecutor(),
        Client(),
    )
    scheduler.add(make_request("a", [1] * 100))
    scheduler.add(make_request("b", [2] * 50))
    assert step(scheduler, executor, client)[1] == {"a": 100}
    assert step(scheduler, executor, client)[1] == {"a": 1, "b": 50}
    run(scheduler, executor, client)


def test_no_more_sequences_than_seats():
    scheduler, executor, client = make_scheduler(max_num_seqs=2), FakeExecutor(), Client()
    for name in "abc":
        scheduler.add(make_request(name, [1, 2, 3], 4))
    assert step(scheduler, executor, client)[1] == {"a": 3, "b": 3}
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 1)
    run(scheduler, executor, client)


def test_priority_decides_who_is_admitted():
    scheduler, executor = make_scheduler(policy="priority", max_num_seqs=1), FakeExecutor()
    for name, priority in (("low", 5), ("high", 1), ("same", 1)):
        scheduler.add(make_request(name, [1, 2], 2, priority=priority))
    order = []
    while scheduler.has_unfinished():
        order += [output.request_id for output in step(scheduler, executor)[2] if output.finish_reason]
    assert order == ["high", "same", "low"]


def test_fcfs_ignores_priority():
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(make_request("first", [1], priority=5))
    scheduler.add(make_request("second", [1], priority=0))
    assert step(scheduler, FakeExecutor())[1] == {"first": 1}


@pytest.mark.parametrize(("policy", "victim"), [("fcfs", "b"), ("priority", "a")])
def test_out_of_blocks_the_last_one_is_preempted_and_continues_later(policy, victim):
    scheduler, executor, client = make_scheduler(num_blocks=8, policy=policy), FakeExecutor(8), Client()
    requests = [make_request("a", [1] * 12, 12, priority=2), make_request("b", [2] * 12, 12, priority=1)]
    for request in requests:
        scheduler.add(request)
    preempted = []
    while scheduler.has_unfinished():
        running = {slot: held.request.key for slot, held in executor.held.items()}
        plan, _, _ = step(scheduler, executor, client)
        preempted += [running[slot][0] for slot in plan.removed if client.last[running[slot]].finish_reason is None]
        again = [new for new in plan.new if new.output_token_ids]
        assert all(new.output_token_ids == client.tokens[new.request.key][:-1] for new in again)
    assert preempted == [victim]
    assert scheduler.stats().num_preemptions == 1
    assert all(client.tokens[request.key] == reference(request)[0] for request in requests)


def test_a_preempted_sequence_finds_its_own_blocks_again():
    scheduler, executor = make_scheduler(num_blocks=8), FakeExecutor(8)
    for name in "ab":
        scheduler.add(make_request(name, [ord(name)] * 12, 10))
    client = run(scheduler, executor)
    assert scheduler.stats().num_preemptions == 1
    assert client.num_cached == {("a", 0): 0, ("b", 0): 0}
    assert scheduler.stats().prefix_hits > 0


def test_a_preempted_sequence_returns_before_those_that_never_ran():
    scheduler, executor = make_scheduler(num_blocks=8, max_num_seqs=2), FakeExecutor(8)
    for name in "abc":
        scheduler.add(make_request(name, [ord(name)] * 12, 10))
    admitted = []
    while scheduler.has_unfinished():
        admitted += [new.request.request_id for new in step(scheduler, executor)[0].new]
    assert admitted[:4] == ["a", "b", "b", "c"]


def test_a_prompt_beyond_the_context_ends_at_once_with_the_numbers():
    scheduler = make_scheduler(max_model_len=32)
    scheduler.add(make_request("a", [1] * 32))
    assert scheduler.has_unfinished()
    (output,) = step(scheduler, FakeExecutor())[2]
    assert output.finish_reason == "error"
    assert "32 tokens; expected at most 31" in output.stop_reason
    assert not scheduler.has_unfinished()


def test_a_prompt_beyond_the_cache_ends_at_once_with_the_capacity():
    scheduler = make_scheduler(num_blocks=6)
    scheduler.add(make_request("a", [1] * 21))
    (output,) = step(scheduler, FakeExecutor(6))[2]
    assert output.finish_reason == "error"
    assert "holds 20 tokens (5 blocks of 4)" in output.stop_reason


def test_a_prompt_that_fills_the_cache_gets_its_token():
    scheduler, request = make_scheduler(num_blocks=6), make_request("a", [1] * 20, 8)
    scheduler.add(request)
    client = run(scheduler, FakeExecutor(6))
    assert client.tokens["a", 0] == reference(request, 21)[0]
    assert client.last["a", 0].finish_reason == "length"
    assert "holds 20 tokens" in client.last["a", 0].stop_reason


def test_a_cache_too_small_for_the_output_ends_the_sequence_whatever_runs_beside_it():
    alone = make_scheduler(num_blocks=6)
    alone.add(make_request("a", [1] * 6, 100))
    expected = run(alone, FakeExecutor(6)).tokens["a", 0]
    crowded = make_scheduler(num_blocks=6)
    for name, prompt in (("z", [3] * 5), ("a", [1] * 6), ("y", [2] * 7)):
        crowded.add(make_request(name, prompt, 100))
    client = run(crowded, FakeExecutor(6))
    assert client.tokens["a", 0] == expected
    assert len(expected) == 15
    assert {output.finish_reason for output in client.last.values()} == {"length"}


def test_an_admission_that_does_not_fit_waits_for_free_blocks():
    scheduler, executor, client = make_scheduler(num_blocks=10), FakeExecutor(10), Client()
    scheduler.add(make_request("a", [1] * 20, 6))
    scheduler.add(make_request("b", [2] * 20, 6))
    assert step(scheduler, executor, client)[1] == {"a": 20}
    assert step(scheduler, executor, client)[1] == {"a": 1}
    run(scheduler, executor, client)
    assert len(client.tokens["b", 0]) == 6
    assert scheduler.stats().num_preemptions == 0


def test_shared_prompts_are_computed_once():
    scheduler, executor = make_scheduler(), FakeExecutor()
    scheduler.add(make_request("a", list(range(20)), 4))
    client = run(scheduler, executor)
    before = executor.num_computed_tokens
    scheduler.add(make_request("b", [*range(20), 30], 1))
    run(scheduler, executor, client)
    assert executor.num_computed_tokens - before == 1
    assert client.num_cached == {("a", 0): 0, ("b", 0): 20}
    assert (scheduler.stats().prefix_queries, scheduler.stats().prefix_hits) == (41, 20)


def test_choices_share_the_prompt_of_the_first():
    scheduler, executor, client = make_scheduler(), FakeExecutor(), Client()
    scheduler.add(make_request("a", list(range(20)), 8, choice=0))
    plans = [step(scheduler, executor, client)[0]]
    scheduler.add(make_request("a", list(range(20)), 8, choice=1))
    plans.append(step(scheduler, executor, client)[0])
    (second,) = plans[1].new
    assert second.num_computed_tokens == 16
    assert second.block_ids[0][:4] == plans[0].new[0].block_ids[0][:4]
    run(scheduler, executor, client)


def test_a_reset_cache_is_cold_again_but_only_when_idle():
    scheduler, executor, client = make_scheduler(), FakeExecutor(), Client()
    scheduler.add(make_request("a", list(range(20)), 4))
    step(scheduler, executor, client)
    assert not scheduler.reset_prefix_cache()
    run(scheduler, executor, client)
    assert scheduler.reset_prefix_cache()
    scheduler.add(make_request("b", list(range(20)), 4))
    assert run(scheduler, executor, client).num_cached["b", 0] == 0


def test_abort_while_waiting_is_silent():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", [1, 2]))
    scheduler.abort(["a", "unknown"])
    assert not scheduler.has_unfinished()
    assert scheduler.schedule().plan.total_num_tokens == 0


def test_abort_while_running_frees_blocks_and_tells_the_worker():
    scheduler, executor = make_scheduler(), FakeExecutor()
    for choice in range(2):
        scheduler.add(make_request("a", [1, 2, 3], choice=choice))
    step(scheduler, executor)
    scheduler.abort_choices([("a", 1), ("a", 7)])
    assert scheduler.stats().num_running == 1
    scheduler.abort(["a"])
    assert scheduler.stats().kv_cache_usage == 0.0
    assert scheduler.has_unfinished()
    plan, _, outputs = step(scheduler, executor)
    assert sorted(plan.removed) == [0, 1]
    assert executor.held == {}
    assert outputs == []
    assert not scheduler.has_unfinished()


def test_results_of_an_aborted_sequence_are_ignored_even_when_its_name_is_used_again():
    scheduler, executor, client = make_scheduler(), FakeExecutor(), Client()
    scheduler.add(make_request("a", [1, 2, 3]))
    planned = scheduler.schedule()
    result = executor.execute(planned.plan)
    scheduler.abort(["a"])
    request = make_request("a", [9, 9, 9])
    scheduler.add(request)
    assert scheduler.finish(planned, result).records == []
    assert run(scheduler, executor, client).tokens["a", 0] == reference(request)[0]


def test_a_name_in_use_is_refused():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", [1]))
    scheduler.add(make_request("a", [1], choice=1))
    with pytest.raises(RequestError, match="'a' \\(choice 1\\) is in use"):
        scheduler.add(make_request("a", [1], choice=1))


def test_finish_and_fail_want_the_oldest_step():
    scheduler = make_scheduler(max_num_batched_tokens=2)
    scheduler.add(make_request("a", list(range(9))))
    scheduler.schedule()
    later = scheduler.schedule()
    with pytest.raises(IntegrityError, match="not the oldest"):
        scheduler.finish(later, StepResult())
    with pytest.raises(IntegrityError, match="not the oldest"):
        scheduler.fail(later, "a sentence")
    with pytest.raises(IntegrityError, match="2 steps"):
        scheduler.schedule()


def test_an_error_ends_one_sequence_and_its_blocks_are_not_reused():
    scheduler, executor, client = make_scheduler(), FakeExecutor(), Client()
    scheduler.add(make_request("bad", list(range(8))))
    good = make_request("good", [1, 2])
    scheduler.add(good)
    step(scheduler, executor, client)
    planned = scheduler.schedule()
    result = executor.execute(planned.plan)
    result.errors[executor.slot("bad")] = "The logits hold NaN."
    client.receive(scheduler.finish(planned, result))
    assert client.last["bad", 0].finish_reason == "error"
    assert client.last["bad", 0].stop_reason == "The logits hold NaN."
    scheduler.add(make_request("next", [*range(8), 1]))
    run(scheduler, executor, client)
    assert client.tokens["good", 0] == reference(good)[0]
    assert client.num_cached["next", 0] == 0


def test_a_worker_that_returns_nothing_is_an_error_not_a_loop():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", [1, 2]))
    (output,) = scheduler.finish(scheduler.schedule(), StepResult()).records
    assert output.finish_reason == "error"
    assert "no token" in output.stop_reason


def test_many_cancelled_requests_leave_nothing_behind():
    for policy in ("fcfs", "priority"):
        scheduler = make_scheduler(policy=policy)
        scheduler.add(make_request("keep", [1, 2, 3]))
        names = [f"r{number}" for number in range(3000)]
        for number, name in enumerate(names):
            scheduler.add(make_request(name, [1, 2, 3], priority=number % 5))
        scheduler.abort(names)
        assert scheduler.stats().num_waiting == 1
        scheduler.check_integrity()
        assert len(run(scheduler, FakeExecutor()).tokens) == 1


def test_requests_of_one_step_share_the_prefix_that_it_computes():
    scheduler, executor = make_scheduler(), FakeExecutor()
    prefix = list(range(1, 23))
    requests = [make_request(f"r{i}", [*prefix, 30 + i], 4) for i in range(4)]
    for request in requests:
        scheduler.add(request)
    client = Client()
    step(scheduler, executor, client)
    assert executor.num_computed_tokens == 23 + 3 * 3  # five blocks of four tokens are computed once
    run(scheduler, executor, client)
    for request in requests:
        assert client.tokens[request.key] == reference(request)[0]
    assert [client.num_cached[request.key] for request in requests] == [0, 20, 20, 20]


def test_a_prefix_is_shared_as_far_as_the_steps_chunk_goes():
    scheduler, executor, client = make_scheduler(max_num_batched_tokens=16), FakeExecutor(), Client()
    scheduler.add(make_request("long", list(range(1, 31)), 3))
    scheduler.add(make_request("short", [*range(1, 11), 39], 3))
    step(scheduler, executor, client)
    step(scheduler, executor, client)
    assert (
        executor.num_computed_tokens == 16 + 14 + 2
    )  # the second one shares eight tokens, and has two of its own left
    run(scheduler, executor, client)
    assert client.tokens["short", 0] == reference(make_request("short", [*range(1, 11), 39], 3))[0]
