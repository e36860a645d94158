"""Limits of all and of single keys, and whether it helps to come back when told to."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from core.api.config import SchedulerConfig
from core.api.errors import RequestError
from core_frontend.queue.limit import QueueLimit, queue_limit
from core_frontend.queue.share import ShareLimits


def refusal(call: Callable[[], object]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call()
    assert caught.value.status == 429
    assert caught.value.retry_after is not None and caught.value.retry_after >= 1
    return caught.value


def test_a_key_has_limits_of_its_own_and_leaves_the_others_alone() -> None:
    limit = QueueLimit(0, 0, per_key=ShareLimits(at_once=3, requests=2, tokens=100))
    limit.enter({"a": 10, "b": 10}, key=0)
    error = refusal(lambda: limit.enter({"c": 10}, key=0))
    assert "--max-num-queued-reqs-per-key" in str(error) and error.code == "key_limit_reached"
    limit.enter({"d": 10}, key=1)
    limit.leave("a")
    assert "--max-num-queued-tokens-per-key" in str(refusal(lambda: limit.enter({"c": 91}, key=0)))
    limit.enter({"c": 10}, key=0)
    limit.leave("b")
    limit.leave("c")
    assert "--max-num-reqs-per-key" in str(refusal(lambda: limit.check(key=0)))
    limit.end("a")
    limit.end("a")
    limit.check(key=0)
    limit.enter({"anybody": 1000})


def test_bodies_that_are_being_read_count_for_their_key() -> None:
    limit = QueueLimit(0, 0, per_key=ShareLimits(at_once=1))
    with limit.arriving(key=0) as arrival:
        refusal(lambda: limit.check(key=0))
        limit.check(key=1)
        arrival.end()
        limit.check(key=0)
    limit.check(key=0)


def test_all_or_none_begin_to_wait() -> None:
    limit = QueueLimit(3, 0, per_key=ShareLimits(requests=2))
    refusal(lambda: limit.enter({"a": 1, "b": 1, "c": 1}, key=0))
    assert len(limit) == 0
    limit.enter({"a": 1, "b": 1}, key=0)
    limit.enter({"c": 1}, key=1)
    assert refusal(lambda: limit.enter({"d": 1}, key=1)).code == "queue_full"


def test_the_limits_come_from_the_configuration() -> None:
    limit = queue_limit(SchedulerConfig(max_num_queued_reqs=5, max_num_reqs_per_key=2))
    assert limit.request_limits(with_keys=False) == {"--max-num-queued-reqs": 5}
    assert limit.request_limits(with_keys=True) == {"--max-num-queued-reqs": 5, "--max-num-reqs-per-key": 2}


@dataclass
class Clock:
    now: float = 0.0

    def read(self) -> float:
        return self.now


@dataclass
class Crowd:
    """Clients who come back exactly when they are told to, and a server whose places become free at some pace.

    served: how often each client that was served had been refused before.
    """

    limit: QueueLimit
    serve: Callable[[], float]
    parallel: int
    clock: Clock
    served: list[int] = field(default_factory=list)
    _events: list[tuple[float, int, str, int]] = field(default_factory=list)
    _order: int = 0
    _queue: list[tuple[str, int]] = field(default_factory=list)
    _busy: int = 0

    def at(self, when: float, name: str, refused: int) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, name, refused))

    def run(self) -> float:
        """Until all are served; returns the seconds that took."""
        while self._events:
            self.clock.now, _, name, refused = heapq.heappop(self._events)
            if refused < 0:
                self.limit.end(name)
                self._busy -= 1
            else:
                self._come(name, refused)
            while self._queue and self._busy < self.parallel:
                self._start()
        return self.clock.now

    def _come(self, name: str, refused: int) -> None:
        try:
            self.limit.enter({name: 100}, key=0)
        except RequestError as error:
            assert error.retry_after is not None
            self.at(self.clock.now + error.retry_after, name, refused + 1)
        else:
            self._queue.append((name, refused))

    def _start(self) -> None:
        name, refused = self._queue.pop(0)
        self.limit.leave(name)
        self.served.append(refused)
        self._busy += 1
        self.at(self.clock.now + self.serve(), name, -1)


def crowd(limits: ShareLimits, seconds: float, parallel: int, *, per_key: bool) -> Crowd:
    clock = Clock()
    noise = random.Random(3)
    everybody = ShareLimits() if per_key else limits
    of_key = limits if per_key else ShareLimits()
    limit = QueueLimit(everybody.requests, everybody.tokens, clock.read, of_key)
    return Crowd(limit, lambda: max(0.01, noise.gauss(seconds, 0.2 * seconds)), parallel, clock)


CROWDS = {
    "a full queue": (ShareLimits(requests=8), 3.0, 1, False),
    "a full queue, quickly served": (ShareLimits(requests=8), 0.3, 1, False),
    "too many tokens": (ShareLimits(tokens=800), 3.0, 1, False),
    "a key's requests at once": (ShareLimits(at_once=4), 12.0, 4, True),
    "a key's queue": (ShareLimits(requests=3), 3.0, 1, True),
}


@pytest.mark.parametrize("name", CROWDS)
def test_who_comes_back_when_told_to_is_served(name: str) -> None:
    limits, seconds, parallel, per_key = CROWDS[name]
    clients = crowd(limits, seconds, parallel, per_key=per_key)
    for number in range(40):  # so that the pace is known
        clients.at(number // 3 * 3 * seconds / parallel, f"early{number}", 0)
    clients.run()
    begin = clients.clock.now
    clients.served.clear()
    for number in range(40):
        clients.at(begin + 1.0 + 0.01 * number, f"r{number}", 0)
    took = clients.run() - begin
    refused = [count for count in clients.served if count]
    assert len(clients.served) == 40
    assert len(refused) > 20
    at_first_return = sum(count == 1 for count in refused) / len(refused)
    assert at_first_return >= 0.8
    assert took < 1.5 * 40 * seconds / parallel + 2.0
