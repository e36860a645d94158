"""Recordings of a step's kernel calls, by kind of call and number of rows.

Owns: the recordings, their sizes, and what can be recorded at all. Never does: know what a call computes.
Called by: the forward pass and the sampling of a step.

A call is recorded once and must be correct for every later step of its kind and size: it works on buffers whose addresses
never change, and reads all input of a step from them.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from core_runtime.contracts import CapturedCalls, Captures, CapturesSizes, Runtime

logger = logging.getLogger(__name__)

Call = Callable[[], None]
EVERY_SIZE: Final = -1


@dataclass(slots=True)
class Recordings:
    """The recordings of one kind of call.

    sizes: row counts that are recorded, ascending; None: one recording serves all.
    padded: whether a step may have more rows than it needs.
    calls: recording and the call that it was made from, which keeps its memory alive, by row count (or EVERY_SIZE).
    """

    sizes: list[int] | None
    padded: bool
    calls: dict[int, tuple[CapturedCalls, Call]] = field(default_factory=dict)

    def fixed(self, num_rows: int) -> int | None:
        """Return the recorded size for `num_rows` rows; None if there is none or none is needed."""
        if self.sizes is None:
            return None
        index = bisect_left(self.sizes, num_rows)
        if index == len(self.sizes):
            return None
        size = self.sizes[index]
        if self.padded or size == num_rows:
            return size
        return None


class Recorder:
    """Runs calls directly, while recording them, or by replaying their recording.

    sizes: row counts that replace the runtime's own for each kind that has any.

    unrecorded: calls that were run directly, by kind.
    recorded, replayed: calls that were recorded, and that were run by their recording, by kind.
    rows, padding: rows of these two, and how many of them belonged to no step, by kind.

    Only kinds that were added are recorded, and only if the runtime can. A failed recording is not tried again: where one
    recording serves all sizes, the kind is forgotten, otherwise the size alone.
    """

    def __init__(self, runtime: Runtime | None = None, sizes: Sequence[int] | None = None) -> None:
        self._runtime = runtime if isinstance(runtime, Captures) else None
        self._sizes = sizes
        self._kinds: dict[str, Recordings] = {}
        self.unrecorded: Counter[str] = Counter()
        self.recorded: Counter[str] = Counter()
        self.replayed: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self.padding: Counter[str] = Counter()

    def add(self, kind: str, max_rows: int, *, padded: bool = True, every_size: bool = False) -> None:
        """Allow recordings of this kind of call, with at most `max_rows` rows.

        padded: False when a call must not have more rows than its step.
        every_size: record only if one recording serves all sizes.
        """
        if self._runtime is None:
            return
        sizes = None
        if isinstance(self._runtime, CapturesSizes):
            sizes = self._runtime.capture_sizes(kind, max_rows)
        if sizes and self._sizes is not None:
            sizes = self._sizes
        if sizes is None:
            self._kinds[kind] = Recordings(None, padded)
        elif not every_size:
            listed = sorted(size for size in sizes if 0 < size <= max_rows)
            self._kinds[kind] = Recordings(listed, padded)

    def add_multiples(self, kind: str, base: str, each: int, max_rows: int) -> None:
        """Allow recordings of this kind of call with `each` rows for each of the numbers of sequences that `base` is
        recorded for, at most `max_rows` rows; none where one recording of `base` serves all sizes.
        """
        one_each = self._kinds.get(base)
        if one_each is not None and one_each.sizes is not None:
            sizes = [size * each for size in one_each.sizes if size * each <= max_rows]
            self._kinds[kind] = Recordings(sizes, one_each.padded)

    def records(self, kind: str) -> bool:
        """Whether calls of this kind are recorded, in any size."""
        recordings = self._kinds.get(kind)
        return recordings is not None and recordings.sizes != []

    def report(self, reason: str, *kinds: str) -> None:
        """Log which of these kinds of steps are recorded, where a recording serves one size. reason: why none is."""
        if isinstance(self._runtime, CapturesSizes):
            recorded = [kind for kind in kinds if self.records(kind)]
            logger.info("Steps that are recorded: %s.", ", ".join(recorded) or f"none, because {reason}")

    def size(self, kind: str, num_rows: int) -> int | None:
        """Return the row count that a step of `num_rows` rows must be padded to; None: it runs unpadded."""
        recordings = self._kinds.get(kind)
        if recordings is None:
            return None
        return recordings.fixed(num_rows)

    def has(self, kind: str, num_rows: int) -> bool:
        """Whether a recording exists for `num_rows` rows of this kind."""
        recordings = self._kinds.get(kind)
        if recordings is None:
            return False
        size = EVERY_SIZE if recordings.sizes is None else recordings.fixed(num_rows)
        return size in recordings.calls

    def run(self, kind: str, num_rows: int, num_seqs: int, call: Call, live: tuple[int, int] | None = None) -> None:
        """Run `call` on `num_rows` rows and `num_seqs` sequences, or replay its recording.

        live: numbers of rows and sequences that are not padding, if some are.
        """
        recordings = self._kinds.get(kind)
        if recordings is None:
            self._run_directly(kind, call)
            return
        size = EVERY_SIZE if recordings.sizes is None else num_rows
        recorded = recordings.calls.get(size)
        if recorded is not None:
            replay, _ = recorded
            live_rows, live_seqs = live or (num_rows, num_seqs)
            replay(live_rows, live_seqs)
            self.replayed[kind] += 1
            self._count_rows(kind, num_rows, live_rows)
        elif recordings.sizes is None or num_rows in recordings.sizes:
            # No call is needed here: a runtime computes what it records, even if the recording fails.
            self._record(kind, size, num_rows, num_seqs, call)
            self.recorded[kind] += 1
            self._count_rows(kind, num_rows, (live or (num_rows, num_seqs))[0])
        else:
            self._run_directly(kind, call)

    def counts(self) -> dict[str, int]:
        """Return all counts by their name, a colon and the kind."""
        counters = {
            "direct": self.unrecorded,
            "recorded": self.recorded,
            "replayed": self.replayed,
            "rows": self.rows,
            "padding": self.padding,
        }
        return {f"{name}:{kind}": count for name, counter in counters.items() for kind, count in counter.items()}

    def _count_rows(self, kind: str, num_rows: int, live: int) -> None:
        self.rows[kind] += num_rows
        self.padding[kind] += num_rows - live

    def forget(self, kind: str) -> None:
        """Drop the recordings of a kind, because the memory that they use is reused."""
        recordings = self._kinds.get(kind)
        if recordings is not None:
            recordings.calls.clear()

    def _run_directly(self, kind: str, call: Call) -> None:
        self.unrecorded[kind] += 1
        call()

    def _record(self, kind: str, size: int, num_rows: int, num_seqs: int, call: Call) -> None:
        assert self._runtime is not None
        calls = self._runtime.capture(call, num_rows, num_seqs)
        recordings = self._kinds[kind]
        if calls is not None:
            recordings.calls[size] = calls, call
        elif recordings.sizes is None:
            del self._kinds[kind]
        else:
            recordings.sizes.remove(size)
