"""Checks of scheduling policies: queues lose nothing, terminate, and stay fast with many waiting.

Owns: the checks. Never does: judge whether an order is wise. Called by: `core_kit.suite`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.plugin.table import load_plugin
from core_kit.case import Failure, Subject

SLOW_FACTOR = 20
FEW = 200
MANY = 20_000


class Entry:
    """A sequence as a queue sees it."""

    def __init__(self, policy: Any, number: int, user: str = "", priority: int = 0) -> None:
        self.request = EngineRequest(f"r{number}", 0, [1, 2, 3], SamplingParams(), 1, user=user, priority=priority)
        self.order = policy.order(self.request, number)


def loses_nothing(subject: Subject) -> None:
    """What is pushed comes out once, unless it is removed; lengths agree."""
    policy = _fresh(subject)
    source = random.Random(1)
    queue = policy.make_queue()
    inside: set[Entry] = set()
    for number in range(600):
        entry = Entry(policy, number, f"user{number % 7}", source.randrange(3))
        if number % 5 == 4:
            queue.restore(entry)
        else:
            queue.push(entry)
        inside.add(entry)
        if number % 3 == 0:
            gone = source.choice(sorted(inside, key=lambda item: item.order))
            queue.remove(gone)
            inside.remove(gone)
        elif number % 4 == 0:
            first = queue.peek()
            if queue.pop() is not first:
                raise Failure("pop gave another sequence than peek")
            inside.remove(first)
        if len(queue) != len(inside) or set(queue) != inside:
            raise Failure(f"the queue holds {len(queue)} sequences, {len(inside)} were put in and not taken out")
    taken = [queue.pop() for _ in range(len(queue))]
    if len(set(taken)) != len(taken) or set(taken) != inside:
        raise Failure("the queue gave a sequence twice, or kept one back")


def orders_differ(subject: Subject) -> None:
    """Two sequences never have the same order, so that it is settled which one is preempted."""
    policy = _fresh(subject)
    orders = _orders(policy)
    if len(set(orders)) != len(orders):
        raise Failure("order answered the same for two arrivals; end it with the number of the arrival")


def orders_repeat(subject: Subject) -> None:
    """The same arrivals have the same orders again, so that who is preempted does not depend on the run."""
    first = _orders(_fresh(subject))
    second = _orders(_fresh(subject))
    for number, (order, again) in enumerate(zip(first, second, strict=True)):
        if order != again:
            raise Failure(
                f"order answered {order} for arrival {number} and {again} for the same one again; make it "
                "from the request and the number of the arrival alone"
            )


def takes_charges(subject: Subject) -> None:
    """Charges are taken at any time, for users that nobody has heard of as well."""
    policy = _fresh(subject)
    if not isinstance(policy.charges, bool):
        raise Failure(f"charges is {policy.charges!r}, expected True or False")
    queue = policy.make_queue()
    for number in range(50):
        entry = Entry(policy, number, f"user{number % 3}")
        policy.charge(entry.request, 5, 0)
        queue.push(entry)
        policy.charge(entry.request, 0, 7)
    for _ in range(50):
        policy.charge(queue.pop().request, 3, 1)


def is_fast(subject: Subject) -> None:
    """An operation costs about the same whether hundreds or tens of thousands wait."""
    few = min(_seconds(subject, FEW) for _ in range(3))
    many = min(_seconds(subject, MANY) for _ in range(3))
    if many > SLOW_FACTOR * few:
        raise Failure(
            f"with {MANY} waiting an operation takes {many * 1e6:.1f} µs, with {FEW} {few * 1e6:.1f} µs; "
            "expected O(log n)"
        )


CHECKS: tuple[Callable[[Subject], None], ...] = (loses_nothing, orders_differ, orders_repeat, takes_charges, is_fast)


def _fresh(subject: Subject) -> Any:
    assert subject.loaded is not None
    return load_plugin(subject.manifest, subject.context())


def _orders(policy: Any) -> list[Any]:
    """Return the orders of fifty arrivals with two priorities."""
    return [Entry(policy, number, "", number % 2).order for number in range(50)]


def _seconds(subject: Subject, count: int) -> float:
    """Return the CPU seconds of one round of push, peek, pop and remove, with `count` waiting."""
    policy = _fresh(subject)
    queue = policy.make_queue()
    for number in range(count):
        queue.push(Entry(policy, number, f"user{number % 50}", number % 3))
    entries = [Entry(policy, count + number, f"user{number % 50}") for number in range(100)]
    begin = time.thread_time()
    for entry in entries:
        queue.push(entry)
        queue.peek()
        queue.restore(queue.pop())
        queue.remove(entry)
    spent = time.thread_time() - begin
    return spent / len(entries)
