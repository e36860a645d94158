"""Recorded graphs of a device: which sizes, and within how much memory.

Owns: which kinds and sizes, and the budget. Never does: decide what is recorded (the engine's recorder does).
Called by: the runtime.

A size is recorded when a step first needs it: the start waits for none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from core_platforms.cuda.calls import DeviceCalls, RecordedGraph
from core_runtime.contracts import CapturedCalls
from core_runtime.specs.graph_sizes import graph_sizes

logger = logging.getLogger(__name__)

WHOLE: Final = ("mixed", "sample")
"""Kinds that are never recorded, by their first word: long steps hide the time of their launches, and sampling is one."""


class Replay:
    """A recording of `num_rows` rows."""

    def __init__(self, graph: RecordedGraph, num_rows: int) -> None:
        self._graph = graph
        self._num_rows = num_rows

    def __call__(self, num_rows: int, num_seqs: int) -> None:
        """Compute all rows of the recording, of which `num_rows` are the step's own."""
        if num_rows > self._num_rows:
            raise ValueError(f"{num_rows} rows do not fit a recording of {self._num_rows}")
        self._graph.replay()


class Again:
    """What there is no memory to record: its calls are made anew, on as many rows."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run

    def __call__(self, num_rows: int, num_seqs: int) -> None:
        """Compute all rows."""
        self._run()


class Graphs:
    """The recordings of a device.

    budget: bytes that they may take together.
    largest: most rows of one.

    spent: bytes that they have taken.
    seconds: that recording has taken.
    """

    def __init__(self, calls: DeviceCalls, budget: int, largest: int) -> None:
        self._calls = calls
        self._budget = budget
        self._largest = largest
        self.spent = 0
        self.seconds = 0.0

    def sizes(self, kind: str, max_rows: int) -> list[int]:
        """Rows for which calls of a kind are recorded; none beyond what a step of that kind can have."""
        if kind.partition(" ")[0] in WHOLE:
            return []
        return graph_sizes(min(max_rows, self._largest))

    def capture(self, run: Callable[[], None], num_rows: int) -> CapturedCalls | None:
        """See `Captures`: computed first, then recorded, which computes nothing."""
        run()
        if self.spent >= self._budget:
            return Again(run)
        self._calls.synchronize()
        begin = time.perf_counter()
        before, _ = self._calls.memory()
        try:
            graph = self._calls.record(run)
        except RuntimeError as error:
            logger.warning("A step of %d rows cannot be recorded and is computed call by call: %s", num_rows, error)
            return None
        after, _ = self._calls.memory()
        self.spent += max(before - after, 0)
        self.seconds += time.perf_counter() - begin
        if self.spent >= self._budget:
            logger.info("Recorded graphs have taken %d MiB; further sizes are computed call by call.", self.spent >> 20)
        return Replay(graph, num_rows)
