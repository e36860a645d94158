"""Resources of running sequences: slots, blocks, and the removals that the worker must receive.

Owns: the running set, the blocks kept in reserve, the suspects, and the slots to report to the worker as removed.
Never does: decide on a transition. Called by: `SchedulerState` (transitions), the planner, admission (checks for room).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from core.api.step_plan import Int32Array, Slot
from core.kv.manager import KVManager
from core.scheduler.running import RunningSet
from core.scheduler.sequence import NO_SLOT, SequenceState


class Seats:
    """The running side of the scheduler's state.

    running:     the sequences with a slot.
    kv:          their blocks.
    suspects:    the sequences of a failed step; each runs alone before others go on. The first may have a slot.
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
        """Whether `num_blocks` blocks are free, the reserve included."""
        return num_blocks <= self.kv.pool.num_free

    def has_room(self, num_blocks: int) -> bool:
        """Whether an admission may take `num_blocks` blocks and leave the reserve."""
        num_available = self.kv.pool.num_free - self._reserve()
        return num_blocks <= num_available

    def empty(self, sequence: SequenceState) -> None:
        """Free the slot of a sequence whose blocks are free already, and have the worker drop it."""
        slot = self.running.stop(sequence)
        self._removed.append(slot)

    def press(self, sequence: SequenceState) -> None:
        """Count a sequence that has lost its blocks to another one, once."""
        if not sequence.was_preempted:
            sequence.was_preempted = True
            self.num_pressed += 1

    def forget(self, sequence: SequenceState) -> None:
        """Stop counting a sequence that has ended."""
        self.num_pressed -= sequence.was_preempted

    def suspect(self, sequences: Sequence[SequenceState]) -> None:
        """Have these sequences computed before all others, one at a time, in this order."""
        self.suspects.extendleft(reversed(sequences))

    def clear(self, sequence: SequenceState) -> None:
        """Remove a sequence from the suspects, if it is one."""
        if self.suspects and sequence in self.suspects:
            self.suspects.remove(sequence)

    @property
    def num_suspects_waiting(self) -> int:
        """Number of suspects without a slot."""
        return sum(suspect.slot == NO_SLOT for suspect in self.suspects)

    @property
    def has_removed(self) -> bool:
        """Whether any removal must still be reported to the worker."""
        return bool(self._removed)

    def take_removed(self) -> list[Slot]:
        """Return the slots for the next plan's `removed`. The caller returns them if the plan never reaches the worker."""
        # Without repetitions: a slot may have been freed, taken and freed again since the last plan.
        removed = list(dict.fromkeys(self._removed))
        self._removed.clear()
        return removed

    def put_back_removed(self, slots: Iterable[Slot]) -> None:
        """Report these slots again: their plan may never have reached the worker."""
        self._removed.extend(slots)

    def repeats(self, slots: Int32Array) -> bool:
        """Whether these are the slots of the previous plan. They are stored for the next call."""
        before = self._newest_slots
        # Comparing bytes takes a tenth of the time of np.array_equal.
        self._newest_slots = slots.tobytes()
        return len(slots) > 0 and self._newest_slots == before

    def _reserve(self) -> int:
        """Number of blocks that an admission must leave free: for a copy of a state, without which a next turn begins anew.

        Once the cache was too small for the running sequences, each of them and the new one must be able to take one more
        block, so that a readmitted sequence is not preempted at once: between an admission and the next preemption some
        sequence fills a whole block.
        """
        num_running = len(self.running)
        if not num_running:
            return 0
        num_each = self.kv.num_growing if self.num_pressed or self.kv.snapshots is not None else 0
        num_copied = 0 if self.kv.snapshots is None else self.kv.states.num_blocks
        return (num_running + 1) * num_each + num_copied
