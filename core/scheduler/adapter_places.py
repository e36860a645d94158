"""The limit of different adapters in a step.

Owns: `AdapterPlaces`: which adapters may get another running sequence, and the sequences without a place for theirs.
Never does: load an adapter, admit or end a sequence. Called by: admission.

When the first sequence in line has no place, the adapter with the fewest running sequences takes no newcomers until the
sequence has one. So its wait is bounded by the sequences that run already, whatever arrives and whatever the policy.
"""

from __future__ import annotations

from collections import Counter

from core.scheduler.awaiting_kv import Aside
from core.scheduler.running import RunningSet
from core.scheduler.sequence import SequenceState, SequenceStatus


class AdapterPlaces(Aside):
    """The places of at most `limit` adapters, and the sequences without one. limit: 0: any number of adapters may run."""

    def __init__(self, limit: int, running: RunningSet) -> None:
        super().__init__()
        self._limit = limit
        self._running = running
        self._first: SequenceState | None = None
        self._closed = ""
        self._counted = (-1, -1)
        self._counts: Counter[str] = Counter()

    def has_place(self, sequence: SequenceState, num_kept: int = 0) -> bool:
        """Whether the adapter of a sequence, if it has one, runs, or has a place when `num_kept` places are kept."""
        adapter = sequence.request.adapter
        counts = self._count()
        return not adapter or not self._limit or adapter in counts or len(counts) + num_kept < self._limit

    def may_start(self, sequence: SequenceState) -> bool:
        """Whether a sequence may start, in view of the first one in line."""
        first = self._first
        adapter = sequence.request.adapter
        if first is None or adapter in ("", first.request.adapter):
            return self.has_place(sequence)
        # The place of the closed adapter, or a free one, is kept for the first in line.
        return adapter != self._closed and self.has_place(sequence, num_kept=1)

    def add(self, sequence: SequenceState) -> None:
        """Move a sequence without a place out of its queue. The first one closes an adapter."""
        super().add(sequence)
        if self._first is None:
            counts = self._count()
            self._first = sequence
            self._closed = min(counts, key=counts.__getitem__)

    def restore_ready(self) -> None:
        """Return the sequences that may start, or all of them when the first in line has its place, or has ended."""
        if self._first is None:
            return
        adapter = self._first.request.adapter
        counts = self._count()
        if self._first.status is SequenceStatus.FINISHED or adapter in counts:
            self._first = None
            self._closed = ""
            self.restore(self)
        elif len(counts) < self._limit:
            self.restore(filter(self.may_start, self))

    def waits_for(self, sequence: SequenceState) -> str:
        """Return the argument that sets the limit."""
        return "max_loras"

    def _count(self) -> Counter[str]:
        """Return the number of running sequences of each adapter, counted anew when any has come or left."""
        now = (self._running.num_departures, len(self._running))
        if now != self._counted:
            self._counted = now
            self._counts = Counter(running.request.adapter for running in self._running.sequences)
            del self._counts[""]
        return self._counts
