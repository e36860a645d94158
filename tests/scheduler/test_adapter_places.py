"""Different adapters of a step: never too many, and nobody waits for others that came later."""

import pytest
from scheduler.fake_model import Client, FakeExecutor, make_request, make_scheduler, reference, run

PROMPT = list(range(1, 14))


def started(scheduler, executor, client, limit=400):
    """Run to the end; returns names in the order in which they started."""
    order = []
    while scheduler.has_unfinished():
        limit -= 1
        assert limit > 0, "somebody never starts"
        step = scheduler.schedule()
        order += [new.request.request_id for new in step.plan.new]
        client.receive(scheduler.finish(step, executor.execute(step.plan)))
        scheduler.check_integrity()
    return order


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_the_first_in_line_waits_for_those_that_run_and_for_nobody_else(policy):
    """A, B, A, A, ... with one place: B starts when the A's that ran have ended, however many come."""
    scheduler = make_scheduler(256, 4, max_num_seqs=4, policy=policy, max_adapters=1)
    executor, client = FakeExecutor(256, 4, max_adapters=1), Client()
    scheduler.add(make_request("a0", PROMPT, 6, adapter="a", user="x"))
    running = scheduler.schedule()
    client.receive(scheduler.finish(running, executor.execute(running.plan)))
    scheduler.add(make_request("b", PROMPT, 2, adapter="b", user="y"))
    later, order = 0, []
    while scheduler.has_unfinished() and "b" not in order:
        later += 1
        scheduler.add(make_request(f"a{later}", PROMPT, 6, adapter="a", user="x"))
        step = scheduler.schedule()
        order += [new.request.request_id for new in step.plan.new]
        client.receive(scheduler.finish(step, executor.execute(step.plan)))
        scheduler.check_integrity()
        assert later < 12, "b waits for those that came later"
    assert order == ["b"], "an A that came later was let in before B"
    assert set(started(scheduler, executor, client)) == {f"a{number}" for number in range(1, later + 1)}


def test_base_requests_and_adapters_that_run_go_past_the_one_that_waits():
    scheduler = make_scheduler(256, 4, max_num_seqs=8, max_adapters=2)
    executor, client = FakeExecutor(256, 4, max_adapters=2), Client()
    for name, adapter in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("c1", "c"), ("free", ""), ("a3", "a"), ("b2", "b")):
        scheduler.add(make_request(name, PROMPT, 8, adapter=adapter))
    order = started(scheduler, executor, client)
    assert order[:3] == ["a1", "a2", "b1"]
    # b has the fewest, so it closes for c: a3 still joins, b2 comes after c1.
    assert order.index("free") < order.index("c1") and order.index("a3") < order.index("c1") < order.index("b2")


def test_a_closed_adapter_opens_when_the_one_that_waited_is_aborted():
    scheduler = make_scheduler(256, 4, max_num_seqs=8, max_adapters=1)
    executor, client = FakeExecutor(256, 4, max_adapters=1), Client()
    scheduler.add(make_request("a1", PROMPT, 20, adapter="a"))
    scheduler.add(make_request("b1", PROMPT, 8, adapter="b"))
    scheduler.add(make_request("a2", PROMPT, 8, adapter="a"))
    step = scheduler.schedule()
    client.receive(scheduler.finish(step, executor.execute(step.plan)))
    assert scheduler.stats().num_running == 1 and scheduler.stats().num_waiting == 2
    scheduler.abort(["b1"])
    step = scheduler.schedule()
    assert [new.request.request_id for new in step.plan.new] == ["a2"]
    client.receive(scheduler.finish(step, executor.execute(step.plan)))
    run(scheduler, executor, client)


def test_a_suspect_with_a_closed_adapter_and_the_one_that_waits_both_come_to_their_end():
    scheduler = make_scheduler(256, 4, max_num_seqs=8, max_adapters=1)
    executor, client = FakeExecutor(256, 4, max_adapters=1), Client()
    requests = [make_request(f"a{number}", PROMPT, 5, adapter="a") for number in range(2)]
    requests.append(make_request("b", PROMPT, 5, adapter="b"))
    for request in requests:
        scheduler.add(request)
    step = scheduler.schedule()
    executor.maybe_gone.update(new.slot for new in step.plan.new)
    scheduler.fail(step, "poisoned")
    run(scheduler, executor, client)
    for request in requests:
        assert client.tokens[request.key] == reference(request)[0]


def test_who_waits_for_a_place_is_told_the_argument():
    scheduler = make_scheduler(256, 4, max_num_seqs=8, max_adapters=1)
    executor, client = FakeExecutor(256, 4, max_adapters=1), Client()
    scheduler.add(make_request("a", PROMPT, 4, adapter="a"))
    waiting = make_request("b", PROMPT, 4, adapter="b")
    waiting.explain = True
    scheduler.add(waiting)
    run(scheduler, executor, client)
    assert client.last["b", 0].record.waited_for == "max_loras"
