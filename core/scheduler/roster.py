"""Table of all live sequences: by key, by deadline, and in the queues.

Owns: the table of keys, the deadlines and both waiting queues. Never does: touch slots or blocks, or decide who starts.
Called by: `SchedulerState` (transitions), admission (looks at the queues).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from core.api.policy import SchedulingPolicy
from core.api.step_plan import SequenceKey
from core.kv.integrity import IntegrityError
from core.scheduler.awaiting_kv import Aside
from core.scheduler.sequence import SequenceState, SequenceStatus

SWEEP_FROM = 64

Deadline = tuple[float, int, SequenceState]
"""Deadline in seconds, arrival number (which orders equal deadlines), and the sequence."""


class Roster:
    """The live sequences and the queues, owned by the scheduler's state.

    waiting: waiting sequences, in the policy's order.
    held:    long prompts that others have overtaken; they come first when they may start.
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
        """Return the live sequence with this key, or None."""
        request_id, choice = key
        return self._choices.get(request_id, {}).get(choice)

    def keys_of(self, request_id: str) -> list[SequenceKey]:
        """Return the keys of a request's live sequences."""
        return [(request_id, choice) for choice in self._choices.get(request_id, ())]

    @property
    def num_queued(self) -> int:
        """Number of sequences in the queues. Suspects, and sequences that wait for their KV, are not in them."""
        return len(self.waiting) + len(self.held)

    def next_arrival(self) -> int:
        """Return the number of a new arrival: 0, 1, 2, ..."""
        arrival = self._num_arrivals
        self._num_arrivals += 1
        return arrival

    def enter(self, sequence: SequenceState, arrival: int) -> None:
        """Add a live sequence. arrival: its number, which orders equal deadlines."""
        request_id, choice = sequence.key
        self._choices.setdefault(request_id, {})[choice] = sequence
        self._num_live += 1
        # A sequence adopted from another state keeps its number; later arrivals must not get it again.
        self._num_arrivals = max(self._num_arrivals, arrival + 1)
        deadline = sequence.request.deadline
        if deadline:
            heapq.heappush(self._deadlines, (deadline, arrival, sequence))

    def leave(self, sequence: SequenceState) -> None:
        """Remove a sequence that has ended."""
        request_id, choice = sequence.key
        choices = self._choices[request_id]
        del choices[choice]
        if not choices:
            del self._choices[request_id]
        self._num_live -= 1
        # An entry inside the heap cannot be removed cheaply, so those of ended sequences go together: O(1) amortized.
        if len(self._deadlines) > 2 * self._num_live + SWEEP_FROM:
            self._sweep_deadlines()

    def take_late(self, now: float) -> list[SequenceState]:
        """Return the sequences whose deadline has passed, each once. O(1) when there are none."""
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
        """Whether any sequence may have a deadline."""
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
        """Remove a sequence from its queue, of which it must be the first. A suspect is in no queue."""
        if sequence.queue is None:
            return
        # The queue belongs to a plugin: one whose `peek` and `pop` disagree would otherwise lose a request silently.
        if isinstance(sequence.queue, Aside) or sequence.queue.pop() is not sequence:
            raise IntegrityError("waiting_order", f"{sequence.key} was started, but it was not the next one")
        sequence.queue = None

    def remove(self, sequence: SequenceState) -> None:
        """Remove a sequence from its queue, whatever its place in it."""
        if sequence.queue is not None:
            sequence.queue.remove(sequence)
            sequence.queue = None

    def _sweep_deadlines(self) -> None:
        """Drop the deadlines of ended sequences, so that they retain no memory."""
        alive: list[Deadline] = []
        for entry in self._deadlines:
            _, _, sequence = entry
            if sequence.status is not SequenceStatus.FINISHED:
                alive.append(entry)
        heapq.heapify(alive)
        self._deadlines = alive
