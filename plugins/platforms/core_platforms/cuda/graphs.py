"""Recorded graphs of a device: their sizes and memory budget.

Owns: the kinds and sizes to record, and the budget. Never does: decide what is recorded (the engine's recorder does).
Called by: the runtime.

A size is recorded when a step first needs it, so startup waits for no recording.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from core_platforms.cuda.calls import DeviceCalls, RecordedGraph
from core_runtime.contracts import CapturedCalls
from core_runtime.specs.graph_sizes import graph_sizes, mixed_sizes

logger = logging.getLogger(__name__)

WHOLE: Final = "sample"
"""First word of the kinds that are never recorded: sampling is a single launch."""


class Replay:
    """A recorded graph of `num_rows` rows."""

    def __init__(self, graph: RecordedGraph, num_rows: int) -> None:
        self._graph = graph
        self._num_rows = num_rows

    def __call__(self, num_rows: int, num_seqs: int) -> None:
        """Compute all rows of the recording; the first `num_rows` belong to the step."""
        if num_rows > self._num_rows:
            raise ValueError(f"{num_rows} rows do not fit a recording of {self._num_rows}")
        self._graph.replay()


class Again:
    """Substitute for a graph that does not fit into the budget: its calls are launched again, on the same number of
    rows.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run

    def __call__(self, num_rows: int, num_seqs: int) -> None:
        """Launch the calls on all rows."""
        self._run()


class Graphs:
    """The recorded graphs of a device, owned by its runtime.

    budget: bytes that all recordings together may take.
    largest: maximum rows of one recording.

    spent: bytes taken so far.
    seconds: time spent recording.
    """

    def __init__(self, calls: DeviceCalls, budget: int, largest: int) -> None:
        self._calls = calls
        self._budget = budget
        self._largest = largest
        self.spent = 0
        self.seconds = 0.0

    def sizes(self, kind: str, max_rows: int) -> list[int]:
        """Return the row counts to record for a kind of calls, up to the largest step of that kind."""
        if kind.partition(" ")[0] == WHOLE:
            return []
        largest = min(max_rows, self._largest)
        if kind == "mixed":
            return mixed_sizes(largest)
        # The largest batch is one that stays, so it is not left without a recording.
        return sorted({*graph_sizes(largest), largest} - {0})

    def capture(self, run: Callable[[], None], num_rows: int) -> CapturedCalls | None:
        """Run the calls once, then record them: the `Captures` contract. Recording itself computes nothing."""
        run()
        if self.spent >= self._budget:
            return Again(run)
        self._calls.synchronize()
        # Recording returns cached memory to the driver, which would hide as much of what the recording takes.
        self._calls.give_back()
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
            logger.warning(
                "Recorded graphs have taken %d MiB of the %d MiB of --platform-config.graph-mib: steps of sizes that were not "
                "recorded by now are computed call by call. Fewer --cudagraph-capture-sizes take less.",
                self.spent >> 20,
                self._budget >> 20,
            )
        return Replay(graph, num_rows)
