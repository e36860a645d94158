"""What ends and what goes on when time is up, a step fails, or an invariant is broken."""

import gc
import random
import resource
import time
from collections import deque

import pytest
from scheduler.fake_model import VOCABULARY, Client, FakeExecutor, make_request, make_scheduler, reference, run

from core.api.config import ModelConfig
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepResult
from core.kv.integrity import IntegrityError
from core.scheduler.roster import Roster
from core_frontend.prompts.input_processor import InputProcessor
from core_kit.devices.wired import WiredExecutor
from tests.inside import state_of


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def step(scheduler, executor, client):
    planned = scheduler.schedule()
    client.receive(scheduler.finish(planned, executor.execute(planned.plan)))
    scheduler.check_integrity()
    return planned.plan


def test_a_request_ends_at_its_deadline_running_or_waiting():
    clock = Clock()
    scheduler, executor, client = make_scheduler(max_num_seqs=1, clock=clock), FakeExecutor(), Client()
    scheduler.add(make_request("runs", [1, 2], 50, deadline=110.0))
    scheduler.add(make_request("waits", [1, 2], 50, deadline=105.0))
    scheduler.add(make_request("patient", [1, 3], 4))
    for _ in range(3):
        step(scheduler, executor, client)
    clock.now = 106.0
    step(scheduler, executor, client)
    assert client.last["waits", 0].finish_reason == "timeout"
    assert "0 tokens generated" in client.last["waits", 0].stop_reason
    clock.now = 110.0
    run(scheduler, executor, client)
    assert client.last["runs", 0].finish_reason == "timeout"
    assert client.tokens["runs", 0] == reference(make_request("runs", [1, 2], 50))[0][:4]
    assert client.last["patient", 0].finish_reason == "length"
    assert scheduler.stats().num_timeouts == 2


def test_ends_of_many_choices_look_through_the_deadlines_a_few_times(monkeypatch):
    looks, sweep = [], Roster._sweep_deadlines

    def counted(roster):
        looks.append(len(roster._deadlines))
        sweep(roster)

    monkeypatch.setattr(Roster, "_sweep_deadlines", counted)
    scheduler, names = make_scheduler(), [f"r{number}" for number in range(20)]
    for name in names:
        for choice in range(64):
            scheduler.add(make_request(name, [1, 2], choice=choice, deadline=9e12))
    scheduler.abort(names)
    assert looks, "ended sequences are not kept"
    assert sum(looks) < 4 * 20 * 64


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_clock_that_is_set_neither_ends_nor_prolongs_requests(jump, monkeypatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    made = InputProcessor(ModelConfig(model="none", served_names=("none",), vocab_size=VOCABULARY), None)
    params = SamplingParams(max_tokens=8)
    scheduler, client = make_scheduler(), Client()
    for name, timeout_s in (("patient", 60.0), ("hasty", 1e-9)):
        scheduler.add(made.process(name, [1, 2], params, deadline=time.monotonic() + timeout_s).requests[0])
    run(scheduler, FakeExecutor(), client)
    assert client.last["patient", 0].finish_reason == "length"
    assert client.last["hasty", 0].finish_reason == "timeout"
    assert "after 0.0 s" in client.last["hasty", 0].stop_reason


def failing(executor, guilty):
    """Wrap `execute`: a step with a guilty sequence raises after it has begun."""
    execute = executor.execute

    def wrapped(plan):
        for slot in plan.removed:
            executor.held.pop(slot, None)
        plan.removed = []
        result = execute(plan)
        names = {executor.held[slot].request.request_id for slot in plan.slots.tolist()}
        if names & guilty:
            raise RuntimeError("poisoned")
        return result

    executor.execute = wrapped


@pytest.mark.parametrize("guilty", [set(), {"r2"}, {"r0", "r4"}, {f"r{i}" for i in range(5)}])
@pytest.mark.parametrize("from_step", [0, 3])
@pytest.mark.usefixtures("also_wired")
def test_only_the_guilty_end_when_a_step_fails(guilty, from_step):
    scheduler, executor, client = make_scheduler(), FakeExecutor(), Client()
    requests = [make_request(f"r{i}", [i] * (3 + i), 8) for i in range(5)]
    for request in requests:
        scheduler.add(request)
    for _ in range(from_step):
        step(scheduler, executor, client)
    failing(executor, guilty)
    for _ in range(200):
        if not scheduler.has_unfinished():
            break
        planned = scheduler.schedule()
        try:
            result = executor.execute(planned.plan)
        except RuntimeError as error:
            client.receive(scheduler.fail(planned, str(error)))
        else:
            client.receive(scheduler.finish(planned, result))
        scheduler.check_integrity()
    for request in requests:
        if request.request_id in guilty:
            assert (client.last[request.key].finish_reason, client.last[request.key].stop_reason) == (
                "error",
                "poisoned",
            )
        else:
            assert client.tokens[request.key] == reference(request)[0]
    assert scheduler.stats().num_running == scheduler.stats().num_waiting == 0
    assert scheduler.stats().kv_cache_usage == 0.0


def test_a_broken_invariant_ends_the_request_at_work_and_nobody_else(monkeypatch):
    scheduler, executor, client = make_scheduler(), FakeExecutor(), Client()
    requests = [make_request(f"r{i}", [i] * 5, 30) for i in range(4)]
    for request in requests:
        scheduler.add(request)
    for _ in range(3):
        step(scheduler, executor, client)
    # A block of r2 is given back behind the scheduler's back; freeing it again is noticed when r2 is aborted.
    guilty = next(s for s in state_of(scheduler).running.sequences if s.request.request_id == "r2")
    scheduler.kv.pool.free([guilty.block_ids[0][0]])
    with pytest.raises(IntegrityError):
        scheduler.check_integrity()
    state_of(scheduler).current = guilty
    client.receive(scheduler.recover(IntegrityError("reference_counts", "a block is freed but not in use")))
    scheduler.check_integrity()
    assert client.last["r2", 0].finish_reason == "error"
    assert "reference_counts" in client.last["r2", 0].stop_reason
    executor.held.clear()
    planned = scheduler.schedule()
    assert sorted(planned.plan.removed) == list(range(8))
    planned.plan.removed = []
    client.receive(scheduler.finish(planned, executor.execute(planned.plan)))
    run(scheduler, executor, client)
    assert scheduler.stats().num_violations == 1
    for request in requests:
        if request.request_id != "r2":
            assert client.tokens[request.key] == reference(request)[0]


def test_a_request_that_the_policy_does_not_take_leaves_nothing_behind(monkeypatch):
    scheduler = make_scheduler()
    scheduler.add(make_request("a", [1, 2]))

    def refuse(sequence):
        raise ZeroDivisionError("a defect of the policy")

    monkeypatch.setattr(state_of(scheduler).waiting, "push", refuse)
    with pytest.raises(ZeroDivisionError):
        scheduler.add(make_request("b", [3, 4], deadline=9e12))
    monkeypatch.undo()
    scheduler.check_integrity()
    assert scheduler.stats().num_waiting == 1
    scheduler.add(make_request("b", [3, 4]))
    client = run(scheduler, FakeExecutor())
    assert client.tokens["b", 0] == reference(make_request("b", [3, 4]))[0]


def test_a_worker_hears_again_of_removals_that_it_never_heard_of():
    scheduler, executor, client = make_scheduler(), FakeExecutor(), Client()
    for name in ("a", "b"):
        scheduler.add(make_request(name, [1, 2, 3], 9))
    step(scheduler, executor, client)
    scheduler.abort(["a"])
    planned = scheduler.schedule()
    assert planned.plan.removed == [0]
    scheduler.give_up()
    assert sorted(scheduler.schedule().plan.removed) == [0, 1]


@pytest.mark.parametrize("seed", range(25))
def test_planning_ahead_gives_the_same_tokens(seed):
    rng = random.Random(seed)
    max_in_flight = 2 + seed % 3
    block_size = rng.choice([1, 3, 4])
    num_blocks = 2 + rng.randint(48, 140) // block_size
    scheduler = make_scheduler(
        num_blocks,
        block_size,
        max_num_seqs=rng.randint(1, 6),
        max_num_batched_tokens=rng.choice([3, 9, 64]),
        max_model_len=40,
        policy=rng.choice(["fcfs", "priority", "fair"]),
        prefix_caching=rng.random() < 0.8,
        num_speculative_tokens=rng.choice([0, 2, 5]),
        async_scheduling=True,
        max_in_flight=max_in_flight,
    )
    executor, client, aborted = FakeExecutor(num_blocks, block_size), Client(), set()
    if seed % 2:
        executor = WiredExecutor(executor)
    requests = []
    for number in range(20):
        handle = number if rng.random() < 0.7 else -1
        client.keys[handle] = f"r{number}", 0
        requests.append(
            make_request(
                f"r{number}",
                [rng.randrange(4) for _ in range(rng.randint(1, 25))],
                rng.randint(1, 14),
                eos=[0, 1] if rng.random() < 0.4 else [],
                priority=rng.randint(0, 2),
                handle=handle,
                prompt_logprobs=0 if rng.random() < 0.2 else None,
            )
        )
    waiting, pending = list(requests), deque()
    while waiting or pending or scheduler.has_unfinished():
        while waiting and rng.random() < 0.5:
            scheduler.add(waiting.pop(0))
        planned = scheduler.schedule()
        if rng.random() < 0.05:
            name = f"r{rng.randrange(20)}"
            if (name, 0) not in client.last or client.last[name, 0].finish_reason is None:
                scheduler.abort([name])
                aborted.add(name)
                waiting = [request for request in waiting if request.request_id != name]
        if pending and (planned.is_idle or len(pending) == max_in_flight - 1):
            client.receive(scheduler.finish(*pending.popleft()))
        if planned.is_idle:
            client.receive(scheduler.finish(planned, StepResult()))
        else:
            pending.append((planned, executor.execute(planned.plan)))
        scheduler.check_integrity()
    assert not executor.held and scheduler.stats().kv_cache_usage == 0.0
    for request in requests:
        if request.request_id not in aborted:
            output, reason, _ = reference(request, 40)
            assert client.tokens[request.key] == output
            assert client.last[request.key].finish_reason == reason


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
@pytest.mark.parametrize("round_size", [3_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_thousands_of_cancelled_requests_leave_no_memory_behind(policy, round_size):
    scheduler = make_scheduler(policy=policy)
    scheduler.add(make_request("keep", [1, 2, 3]))

    params = SamplingParams(max_tokens=8)

    def queue_and_cancel(count):
        names = [f"r{number}" for number in range(count)]
        for number, name in enumerate(names):
            request = EngineRequest(name, 0, [1] * 50, params, 1, priority=number % 5, user=f"user{number % 300}")
            request.deadline = 9e12
            scheduler.add(request)
        assert scheduler.stats().num_waiting == count + 1
        scheduler.abort(names)

    queue_and_cancel(round_size)
    gc.collect()
    before = resident_bytes()
    for _ in range(5):
        queue_and_cancel(round_size)
    gc.collect()
    assert resident_bytes() - before < 8 << 20
    assert scheduler.stats().num_waiting == 1
    scheduler.check_integrity()
    assert len(run(scheduler, FakeExecutor()).tokens) == 1


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("leaves", [None, "first", "second"])
@pytest.mark.usefixtures("also_wired")
def test_a_prefix_that_a_failed_step_should_have_written_is_not_reused(leaves):
    """The second starts in the step that computes the prefix which both share."""
    scheduler, executor, client = make_scheduler(), FakeExecutor(), Client()
    prefix = list(range(20, 34))
    requests = [make_request("first", [*prefix, 1], 6), make_request("second", [*prefix, 2, 3], 6)]
    requests.append(make_request("other", [9, 8, 7], 6))
    for request in requests:
        scheduler.add(request)
    planned = scheduler.schedule()
    assert planned.plan.query_lens.tolist() == [15, 4, 3]
    if leaves is not None:
        scheduler.abort([leaves])
    client.receive(scheduler.fail(planned, "the device was lost"))
    scheduler.check_integrity()
    scheduler.add(make_request("third", [*prefix, 4], 6))
    planned = scheduler.schedule()
    planned.plan.removed = []  # the executor has not heard of them
    client.receive(scheduler.finish(planned, executor.execute(planned.plan)))
    run(scheduler, executor, client)
    for request in requests:
        if request.request_id != leaves:
            assert client.tokens[request.key] == reference(request)[0]
            assert client.last[request.key].finish_reason == "length"
    assert client.tokens["third", 0] == reference(make_request("third", [*prefix, 4], 6))[0]


def test_a_state_that_a_failed_step_should_have_copied_is_not_reused():
    """Nor is anybody's state at fault: the snapshot was to be made by a step that never ran."""
    scheduler, executor, client = make_scheduler(states=True), FakeExecutor(), Client()
    requests = [make_request(name, list(range(begin, begin + 10)), 4) for name, begin in (("a", 0), ("b", 20))]
    for request in requests:
        scheduler.add(request)
    step(scheduler, executor, client)
    failing = scheduler.schedule()
    assert len(failing.plan.copies) == 2, "both prompts have come to their last edge"
    client.receive(scheduler.fail(failing, "never computed"))
    for request in requests:
        later = make_request(f"{request.request_id} again", request.prompt_token_ids, 4)
        scheduler.add(later)
        requests = [*requests, later]
    run(scheduler, executor, client)
    for request in requests:
        assert client.tokens[request.key] == reference(request)[0]
    assert [client.num_cached[request.key] for request in requests] == [0, 0, 8, 8]
