"""All sequences that have not ended: by name, by deadline, and in the queues.

Owns: the table of names, the deadlines and both waiting queues. Never does: touch slots or blocks, or decide who starts.
Called by: `SchedulerState` (transitions), admission (looks at the queues).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from core.api.policy import SchedulingPolicy
from core.api.step_plan import SequenceKey
from core.kv.integrity import IntegrityError
from core.scheduler.sequence import SequenceState, SequenceStatus

SWEEP_FROM = 64

Deadline = tuple[float, int, SequenceState]
"""Seconds, the number of the arrival (which tells apart the same seconds), and who must be done by then."""


class Roster:
    """Who is alive, and who waits.

    waiting: the sequences that wait, in the policy's order.
    held:    long prompts that others overtook, first in line.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.waiting = policy.make_queue()
        self.held = policy.make_queue()
        self._choices: dict[str, dict[int, SequenceState]] = {}
        self._num_live = 0
        self._num_arrivals = 0
        self._deadlines: list[Deadline] = []

    def __len__(self) -> int:
        return self._num_live

    def __iter__(self) -> Iterator[SequenceState]:
        for choices in self._choices.values():
            yield from choices.values()

    def find(self, key: SequenceKey) -> SequenceState | None:
        """The live sequence of that name."""
        request_id, choice = key
        choices = self._choices.get(request_id, {})
        return choices.get(choice)

    def keys_of(self, request_id: str) -> list[SequenceKey]:
        """The names of a request's live sequences."""
        return [(request_id, choice) for choice in self._choices.get(request_id, ())]

    @property
    def num_queued(self) -> int:
        """Sequences in the queues; suspects wait outside of them."""
        return len(self.waiting) + len(self.held)

    def next_arrival(self) -> int:
        """The number of an arrival: 0, 1, 2, ..."""
        arrival = self._num_arrivals
        self._num_arrivals += 1
        return arrival

    def enter(self, sequence: SequenceState, arrival: int) -> None:
        """Count a sequence among the living. arrival: tells apart deadlines at the same time."""
        request_id, choice = sequence.key
        choices = self._choices.setdefault(request_id, {})
        choices[choice] = sequence
        self._num_live += 1
        self._num_arrivals = max(self._num_arrivals, arrival + 1)
        deadline = sequence.request.deadline
        if deadline:
            heapq.heappush(self._deadlines, (deadline, arrival, sequence))

    def leave(self, sequence: SequenceState) -> None:
        """Forget a sequence that has ended."""
        request_id, choice = sequence.key
        choices = self._choices[request_id]
        del choices[choice]
        if not choices:
            del self._choices[request_id]
        self._num_live -= 1
        if len(self._deadlines) > 2 * self._num_live + SWEEP_FROM:
            self._sweep_deadlines()

    def take_late(self, now: float) -> list[SequenceState]:
        """The sequences whose deadline has passed. Each is named once; O(1) when there are none."""
        late: list[SequenceState] = []
        while self._deadlines:
            deadline, _, sequence = self._deadlines[0]
            if deadline > now:
                break
            heapq.heappop(self._deadlines)
            if sequence.status is not SequenceStatus.FINISHED:
                late.append(sequence)
        return late

    @property
    def has_deadlines(self) -> bool:
        """Whether anybody may ever be late."""
        return bool(self._deadlines)

    def queue(self, sequence: SequenceState) -> None:
        """Add a new arrival to the queue."""
        self.waiting.push(sequence)
        sequence.queue = self.waiting

    def queue_again(self, sequence: SequenceState) -> None:
        """Put a sequence that ran before into the queue, before all that arrived later."""
        self.waiting.restore(sequence)
        sequence.queue = self.waiting

    def take_first(self, sequence: SequenceState) -> None:
        """Take a sequence, which must be the first of its queue, out of it. A suspect is in none."""
        if sequence.queue is None:
            return
        if sequence.queue.pop() is not sequence:
            raise IntegrityError("waiting_order", f"{sequence.key} was started, but it was not the next one")
        sequence.queue = None

    def remove(self, sequence: SequenceState) -> None:
        """Take a sequence out of its queue, wherever it stands in it."""
        if sequence.queue is not None:
            sequence.queue.remove(sequence)
            sequence.queue = None

    def _sweep_deadlines(self) -> None:
        """Drop the deadlines of ended sequences, so that they hold no memory."""
        alive: list[Deadline] = []
        for entry in self._deadlines:
            _, _, sequence = entry
            if sequence.status is not SequenceStatus.FINISHED:
                alive.append(entry)
        heapq.heapify(alive)
        self._deadlines = alive
