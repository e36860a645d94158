"""Users take turns by the service that each has received: the virtual token counter of Sheng et al., "Fairness in
Serving Large Language Models" (OSDI 2024).

Owns: the counters, one queue per user, the heap of users. Never does: admit, preempt, know API keys (the server names
users). Called by: the scheduler, through `core.api.policy`.

A user pays `PROMPT_WEIGHT` for each prompt token computed and `OUTPUT_WEIGHT` for each token generated. The user with
the lowest counter is next. A user who returns after a pause starts at the level of the waiting ones, so credit does not
accumulate.

Bounds. (1) A user without queued requests who sends one is admitted before any other user's second request from then
on: a heavy user delays a light one by at most one admission (and by what already runs), however many requests it has
queued. (2) Two users who both have requests queued all the time differ by at most 2 · max(PROMPT_WEIGHT · longest
prompt, OUTPUT_WEIGHT · most tokens that run at once), no matter how long their requests are: theorem 4.4 of the paper.

Where engines of other models run on the machine (`--shared-limits`), a user also pays for the service that these give while
requests of this user are queued here; bound (2) is then about the service of all engines together. What another engine gave
before that counts as little as a pause does.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile

from core.api.messages import EngineRequest
from core.api.policy import Order, Queued
from core_policies.fair.arguments import FairArguments
from core_policies.fair.elsewhere import ServiceElsewhere

PROMPT_WEIGHT = 1
OUTPUT_WEIGHT = 2
SWEEP_FROM = 64


class Counters:
    """The service that each user has received.

    level: where a user with nothing queued starts; it never falls. It is the counter of the user admitted last, when it
        was admitted; once nobody waits, the service that this user has had since counts as well. Users at or below it
        who have nothing queued are forgotten: they would start there again.
    num_queued: requests in the queue by user; only users who have some.
    elsewhere: service at other engines; None: there are none.
    """

    def __init__(self, elsewhere: ServiceElsewhere | None = None) -> None:
        self._elsewhere = elsewhere
        self._paid: dict[str, int] = {}
        self.level = 0
        self.num_queued: dict[str, int] = {}
        self._admitted_last = ""
        self._had: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._had)

    def __getitem__(self, user: str) -> int:
        return self._had.get(user, self.level)

    def arrive(self, user: str) -> None:
        """Record that a request of `user` was queued."""
        if not self.num_queued:
            self.level = max(self.level, self[self._admitted_last])
        waiting = self.num_queued.get(user, 0)
        self.num_queued[user] = waiting + 1
        if not waiting:
            self._had[user] = max(self[user], self.level)
            if self._elsewhere is not None:
                self._paid[user] = self._elsewhere.total(user)
            self._sweep()

    def leave(self, user: str) -> None:
        """Record that a request of `user` left the queue."""
        waiting = self.num_queued.pop(user) - 1
        if waiting:
            self.num_queued[user] = waiting
        else:
            self._paid.pop(user, None)

    def admit(self, user: str) -> None:
        """Set the level to the counter of `user`, who is admitted next."""
        self.level = max(self.level, self[user])
        self._admitted_last = user

    def charge(self, user: str, amount: int) -> None:
        """Add `amount` to the service that `user` has received."""
        self._had[user] = self[user] + amount
        if self._elsewhere is not None:
            self._elsewhere.add(user, amount)

    def latest(self, user: str) -> int:
        """Return the counter of a user with queued requests, after charging what other engines gave meanwhile."""
        if self._elsewhere is not None:
            total = self._elsewhere.total(user)
            # An engine that ended takes its part of the total with it.
            self._had[user] = self[user] + max(0, total - self._paid[user])
            self._paid[user] = total
        return self[user]

    def _sweep(self) -> None:
        """Drop users who left long ago, so that memory does not grow with the engine's age."""
        if len(self._had) > max(SWEEP_FROM, 2 * len(self.num_queued)):
            kept = {}
            for user, count in self._had.items():
                if user in self.num_queued or count > self.level:
                    kept[user] = count
            self._had = kept


class FairQueue:
    """One queue per user, and a heap of users. Heap entries may be too low, because counters only grow."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._queues: dict[str, OrderedDict[Queued, None]] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._in_heap: set[str] = set()
        self._num_entered = 0
        self._length = 0

    def push(self, sequence: Queued, /) -> None:
        """Add a new arrival after its user's others."""
        self._enter(sequence)

    def restore(self, sequence: Queued, /) -> None:
        """Return a sequence to its former place among its user's others."""
        queue = self._enter(sequence)
        earlier = list(takewhile(lambda queued: queued.order < sequence.order, queue))
        for first in (sequence, *reversed(earlier)):
            queue.move_to_end(first, last=False)

    def peek(self) -> Queued:
        """Return the first sequence of the user with the lowest counter."""
        user = self._next_user()
        return next(iter(self._queues[user]))

    def pop(self) -> Queued:
        """Remove and return the next sequence; its user's counter becomes the level."""
        user = self._next_user()
        self._counters.admit(user)
        sequence = next(iter(self._queues[user]))
        self.remove(sequence)
        return sequence

    def remove(self, sequence: Queued, /) -> None:
        """Remove a queued sequence."""
        user = account_of(sequence.request)
        queue = self._queues[user]
        del queue[sequence]
        self._length -= 1
        self._counters.leave(user)
        if not queue:
            del self._queues[user]
            if len(self._heap) > max(SWEEP_FROM, 2 * len(self._queues)):
                self._sweep()

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Queued]:
        return (sequence for queue in self._queues.values() for sequence in queue)

    def _enter(self, sequence: Queued) -> OrderedDict[Queued, None]:
        user = account_of(sequence.request)
        self._counters.arrive(user)
        self._length += 1
        queue = self._queues.setdefault(user, OrderedDict())
        queue[sequence] = None
        if user not in self._in_heap:
            self._num_entered += 1
            self._in_heap.add(user)
            entry = (self._counters[user], self._num_entered, user)
            heapq.heappush(self._heap, entry)
        return queue

    def _sweep(self) -> None:
        """Drop users without queued requests from the heap."""
        self._heap = [(count, entered, user) for count, entered, user in self._heap if user in self._queues]
        self._in_heap = {user for _, _, user in self._heap}
        heapq.heapify(self._heap)

    def _next_user(self) -> str:
        """Return the user with the lowest counter among those with queued requests."""
        heap = self._heap
        while True:
            counter, entered, user = heap[0]
            if user not in self._queues:
                heapq.heappop(heap)
                self._in_heap.remove(user)
                continue
            actual = self._counters.latest(user)
            if actual > counter:
                heapq.heapreplace(heap, (actual, entered, user))
            else:
                return user


class FairPolicy:
    """Implements `core.api.policy.SchedulingPolicy`.

    counters: the service that users have received, shared by the queues.
    """

    charges = True

    def __init__(self, arguments: FairArguments = FairArguments()) -> None:  # noqa: B008 (frozen)
        directory = arguments.shared_limits
        self.counters = Counters(None if directory is None else ServiceElsewhere(directory))

    def order(self, request: EngineRequest, arrival: int) -> Order:
        """Return the order of arrival: fairness decides about admission, not about preemption."""
        return 0, arrival

    def make_queue(self) -> FairQueue:
        """Return an empty queue that shares the counters."""
        return FairQueue(self.counters)

    def charge(self, request: EngineRequest, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Charge the request's user for computed tokens."""
        amount = PROMPT_WEIGHT * num_prompt_tokens + OUTPUT_WEIGHT * num_output_tokens
        self.counters.charge(account_of(request), amount)


def account_of(request: EngineRequest) -> str:
    """Return the name under which a request's service is counted: the batch class has accounts of its own at every engine."""
    return f"batch class of {request.user}" if request.flex else request.user
