"""A thousand sequences wait for keys and values: others go on, a step asks for one, and no step hashes a long prompt."""

import random
import threading
from functools import partial

import pytest
from scheduler.fake_model import Client, FakeExecutor, make_request, reference

from core.api.config import SchedulerConfig
from core.kv.block_keys import AHEAD, BlockKeys
from core.kv.connector import KVConnector
from core.kv.connectors import KVConnectors
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence
from core.scheduler import admission
from core.scheduler.scheduler import Scheduler
from core_policies.fcfs.policy import FcfsPolicy
from tests.inside import state_of

MANY = 1000
SIZE = 2
LENGTH = 140 * SIZE


class Place(KVConnector):
    """Seems to have every page of a long prompt; the test ends its loads. asked: calls of `is_loaded`."""

    def __init__(self) -> None:
        self.loads = []
        self.asked = 0

    def can_load(self):
        return True

    def may_load(self, group, key):
        return True

    def start_load(self, load):
        self.loads.append(load)

    def is_loaded(self, load):
        self.asked += 1
        return load.is_done


def long_prompt(number: int) -> list[int]:
    return [number, *range(LENGTH)]


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def scheduler(place: Place) -> Scheduler:
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=1024)
    make_kv = partial(KVManager, 2048, SIZE, connectors=KVConnectors([place]))
    return Scheduler(config, make_kv, FcfsPolicy())


def steps(scheduler: Scheduler, client: Client, executor: FakeExecutor, until) -> None:
    """Steps as an engine takes them: one without anything to compute waits for loads."""
    for _ in range(100_000):
        if until():
            return
        step = scheduler.schedule()
        client.receive(scheduler.finish(step, executor.execute(step.plan)))
        if step.is_idle:
            scheduler.kv.loads.wait(0.001)
    raise AssertionError("that never happened")


def test_a_thousand_wait_while_others_go_on_and_all_are_answered_in_order(
    scheduler: Scheduler, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = threading.get_ident()
    most: dict[bool, int] = {True: 0, False: 0}
    real = BlockKeys._extend

    def extend(keys, sequence, count):
        mine = threading.get_ident() == planner
        most[mine] = max(most[mine], count - len(sequence.prefix_keys))
        real(keys, sequence, count)

    monkeypatch.setattr(BlockKeys, "_extend", extend)
    monkeypatch.setattr("core.kv.prefix.PAUSE_S", 0.0)
    client, executor = Client(), FakeExecutor(2048, SIZE)
    state = state_of(scheduler)
    waiting = [make_request(f"r{number}", long_prompt(number), 1) for number in range(MANY)]
    for request in waiting:
        scheduler.add(request)
    steps(scheduler, client, executor, lambda: len(place.loads) == MANY)
    assert len(state.awaiting) == MANY and not len(state.waiting)
    stream = make_request("stream", [1, 2], 30)
    scheduler.add(stream)
    asked = place.asked
    for _ in range(11):
        step = scheduler.schedule()
        client.receive(scheduler.finish(step, executor.execute(step.plan)))
    assert len(client.tokens["stream", 0]) >= 10, "a running sequence goes on"
    assert place.asked <= asked + 11, "a step asks for one of them"
    assert most[False] > AHEAD, "the thread has hashed"
    assert most[True] <= 2 * AHEAD, "no step has hashed more than the beginning or the end of a prompt"
    scheduler.check_integrity()
    for request in waiting[10:]:
        scheduler.abort([request.request_id])
    loads = place.loads[:10]
    random.Random(1).shuffle(loads)
    for load in loads:
        load.finish()
    scheduler.check_integrity()
    steps(scheduler, client, executor, lambda: not state.has_unfinished)
    assert not len(state.awaiting) and not scheduler.kv.loads.owners, "nothing is kept of those that have left"
    for request in (stream, *waiting[:10]):
        assert client.tokens[request.key] == reference(request, 1024)[0]
    assert list(client.tokens)[1:] == [request.key for request in waiting[:10]], "in the order of their arrival"


def test_keys_that_could_not_be_hashed_ahead_are_hashed_in_the_step(
    scheduler: Scheduler, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planner = threading.get_ident()
    real = BlockKeys._extend

    def extend(keys, sequence, count):
        if threading.get_ident() != planner:
            raise MemoryError("no room for keys")
        real(keys, sequence, count)

    monkeypatch.setattr(BlockKeys, "_extend", extend)
    client, executor = Client(), FakeExecutor(2048, SIZE)
    request = make_request("long", long_prompt(5), 3)
    scheduler.add(request)
    steps(scheduler, client, executor, lambda: len(place.loads) == 1)
    place.loads[0].finish()
    steps(scheduler, client, executor, lambda: not state_of(scheduler).has_unfinished)
    assert client.tokens["long", 0] == reference(request, 1024)[0]
    assert "could not be hashed ahead" in caplog.text


def test_memory_for_keys_is_limited(scheduler: Scheduler, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_KEYS", 3 * (len(long_prompt(0)) // SIZE))
    client, executor = Client(), FakeExecutor(2048, SIZE)
    requests = [make_request(f"r{number}", long_prompt(number), 2) for number in range(12)]
    for request in requests:
        scheduler.add(request)
    num_ended = 0

    def end_some() -> bool:
        nonlocal num_ended
        assert len(state_of(scheduler).awaiting) <= 3, "as many as have room"
        for load in place.loads[num_ended:]:
            load.finish()
            num_ended += 1
        return not state_of(scheduler).has_unfinished

    steps(scheduler, client, executor, end_some)
    for request in requests:
        assert client.tokens[request.key] == reference(request, 1024)[0]


def test_a_burst_on_a_slow_place_is_not_given_up_while_loads_come(place: Place) -> None:
    """Ten seconds count from the last load that brought pages, so that a long queue for a disk is not computed instead."""
    now = 0.0
    connectors = KVConnectors([place], lambda: now)
    kv = KVManager(64, SIZE, connectors=connectors)
    first, second, third = (KVSequence([number, *range(20)]) for number in range(3))
    loads = [kv.lookup(sequence) for sequence in (first, second, third)]
    now = 9.0
    loads[0].add(0, 0, b"page")
    loads[0].finish()
    assert loads[0] in set(kv.loads.over())
    now = 18.0
    assert not kv.loads.is_over(loads[1]) and not kv.loads.is_over(loads[2])
    now = 19.0
    assert kv.loads.is_over(loads[1]) and kv.loads.is_over(loads[2])


def test_a_load_that_fails_ends_all_choices_of_its_request_and_no_other(scheduler: Scheduler, place: Place) -> None:
    client, executor = Client(), FakeExecutor(2048, SIZE)
    choices = [make_request("fails", long_prompt(1), 3, choice=choice) for choice in range(3)]
    other = make_request("other", long_prompt(2), 3)
    for request in (*choices, other):
        scheduler.add(request)
    steps(scheduler, client, executor, lambda: len(place.loads) == 4)
    place.loads[1].failure = "the page is damaged"
    for load in place.loads[1:]:
        load.finish()
    steps(scheduler, client, executor, lambda: not state_of(scheduler).has_unfinished)
    assert client.tokens[other.key] == reference(other, 1024)[0]
    for request in choices:
        last = client.last[request.key]
        assert (last.finish_reason, last.stop_reason) == ("error", "the page is damaged") and not client.tokens[
            request.key
        ]
    assert executor.num_computed_tokens == len(long_prompt(2)) + 2, "nothing of the failed request was computed"
    assert not scheduler.kv.loads.owners and scheduler.kv.usage == 0.0
    scheduler.check_integrity()
