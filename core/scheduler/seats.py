"""Everything that running takes: slots, blocks, and a worker that knows who has them.

Owns: the running set, the blocks kept in reserve, who is suspected, and the slots that the worker must hear of.
Never does: decide on a transition. Called by: `SchedulerState` (transitions), the planner, admission (asks for room).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from core.api.step_plan import Int32Array, Slot
from core.kv.manager import KVManager
from core.scheduler.running import RunningSet
from core.scheduler.sequence import NO_SLOT, SequenceState


class Seats:
    """The running side of the scheduler.

    running:     the sequences with a slot.
    kv:          their blocks.
    suspects:    the sequences of a step that failed; each runs alone before others go on. The first may hold a slot.
    num_pressed: live sequences that were preempted for blocks: while there are any, admission keeps a reserve.
    """

    def __init__(self, max_num_seqs: int, kv: KVManager) -> None:
        self.running = RunningSet(max_num_seqs)
        self.kv = kv
        self.suspects: deque[SequenceState] = deque()
        self.num_pressed = 0
        self._removed: list[Slot] = []
        self._newest_slots = b""

    def has_free(self, num_blocks: int) -> bool:
        """Whether that many blocks are free."""
        return num_blocks <= self.kv.pool.num_free

    def has_room(self, num_blocks: int) -> bool:
        """Whether an admission may take that many blocks, so that a reserve is left."""
        num_available = self.kv.pool.num_free - self._reserve()
        return num_blocks <= num_available

    def empty(self, sequence: SequenceState) -> None:
        """Take the slot of a sequence, whose blocks are free already, and have the worker forget it."""
        slot = self.running.stop(sequence)
        self._removed.append(slot)

    def press(self, sequence: SequenceState) -> None:
        """Note that a sequence has lost its blocks to another one."""
        if not sequence.was_preempted:
            sequence.was_preempted = True
            self.num_pressed += 1

    def forget(self, sequence: SequenceState) -> None:
        """Note that a sequence has ended."""
        self.num_pressed -= sequence.was_preempted

    def suspect(self, sequences: Sequence[SequenceState]) -> None:
        """Have these computed before all others, one at a time, in this order."""
        self.suspects.extendleft(reversed(sequences))

    def clear(self, sequence: SequenceState) -> None:
        """Suspect a sequence no longer."""
        if self.suspects and sequence in self.suspects:
            self.suspects.remove(sequence)

    @property
    def num_suspects_waiting(self) -> int:
        """Suspects without a slot."""
        return sum(suspect.slot == NO_SLOT for suspect in self.suspects)

    @property
    def has_removed(self) -> bool:
        """Whether the worker must hear of a slot."""
        return bool(self._removed)

    def take_removed(self) -> list[Slot]:
        """The slots for the next plan's `removed`; the caller hands them back when the worker never hears of them."""
        removed = list(dict.fromkeys(self._removed))
        self._removed.clear()
        return removed

    def put_back_removed(self, slots: Iterable[Slot]) -> None:
        """Slots of plans that may never have reached the worker: it hears of them again."""
        self._removed.extend(slots)

    def repeats(self, slots: Int32Array) -> bool:
        """Whether these are the slots of the plan before. They are remembered for the next call."""
        before = self._newest_slots
        # As bytes, which takes a tenth of the time of np.array_equal.
        self._newest_slots = slots.tobytes()
        return len(slots) > 0 and self._newest_slots == before

    def _reserve(self) -> int:
        """Blocks to leave free.

        Once the cache was too small for the sequences that ran, everybody must be able to take one more, so that a
        sequence that comes back is not sent away at once: between an admission and the next preemption somebody fills a
        whole block.
        """
        num_running = len(self.running)
        if not num_running or not self.num_pressed:
            return 0
        return (num_running + 1) * self.kv.num_growing
