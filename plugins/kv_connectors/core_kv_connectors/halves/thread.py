"""The thread on which a worker half is called.

Owns: `HalfThread`: the order of calls, which slots are in transfers, and what became of them. Never does: choose blocks, or
know a pool. Called by: the worker (arenas), the scheduler's half of a connector (transfers and reports).

A half that blocks holds up neither steps nor the scheduler, and one that hangs keeps the slots that it has been given.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from core_kv_connectors.halves.contract import Arena, BlockName, Layout, Ticket, WorkerHalf

logger = logging.getLogger(__name__)

POLL_S: Final = 0.001
RELEASE_S: Final = 5.0
"""Seconds that a half gets to let go of an arena; one that takes longer keeps its memory from being freed."""

Report = tuple[int, bool]
"""Slot, and whether its transfer did what it should."""


class HalfThread:
    """One worker half and its thread. name: of the connector, for messages.

    wake: called from the thread when there are reports. num_arenas: how often the half was told to drop its arena.
    has_ended: whether the half was closed and the thread is over, so that nothing moves a block.
    error: what `register`, `poll` or another call without slots raised, which ends the thread; None: it works.
    """

    def __init__(self, half: WorkerHalf, name: str) -> None:
        self.wake: Callable[[], None] | None = None
        self.error: Exception | None = None
        self.num_arenas = 0
        self.has_ended = False
        self._half = half
        self._name = name
        self._calls: deque[Callable[[], None]] = deque()
        self._work = threading.Event()
        self._lock = threading.Lock()
        self._moving: set[int] = set()
        self._reports: list[Report] = []
        self._warned: float | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"kv-{name}", daemon=True)
        self._thread.start()

    # --- the worker ---

    def register(self, arena: Arena, layout: Layout) -> None:
        """Give the half an arena. Returns at once."""
        self._call(lambda: self._half.register(arena, layout))

    def release(self) -> bool:
        """Let the half drop its arena, whose slots are reported no more; False when it has not done so in time."""
        with self._lock:
            self.num_arenas += 1
            self._moving = set()
            self._reports = []
            self._calls.clear()
        if self._is_closed or self.error is not None:
            return True
        done = threading.Event()
        self._call(self._half.release, done.set)
        if not done.wait(RELEASE_S) and self.error is None:
            logger.warning(
                "The worker half of the KV connector '%s' has not let go of the KV cache within %g s; its memory stays in use.",
                self._name, RELEASE_S,
            )  # fmt: skip
            return False
        return True

    # --- the scheduler's half ---

    def load(self, ticket: Ticket, slots: Sequence[int]) -> None:
        """Have the half fill slots; each is reported once. Returns at once."""
        self._move(slots, lambda: self._half.load(ticket, slots))

    def save(self, slots: Sequence[int], names: Sequence[BlockName]) -> None:
        """Have the half store slots; each is reported once. Returns at once."""
        self._move(slots, lambda: self._half.save(slots, names))

    def drop(self, names: Sequence[BlockName]) -> None:
        """Have the half drop pages. Returns at once."""
        if names:
            self._call(lambda: self._half.drop(names))

    def poll(self) -> list[Report]:
        """Return the reports since the last call. Raises what has ended the thread."""
        if self.error is not None:
            raise self.error
        with self._lock:
            reports, self._reports = self._reports, []
        return reports

    def close(self, timeout_s: float) -> None:
        """Close the half and end its thread, for which it has `timeout_s` seconds."""
        self._is_closed = True
        self._work.set()
        self._thread.join(timeout_s)

    # --- the thread ---

    def _call(self, *calls: Callable[[], None]) -> None:
        with self._lock:
            self._calls.extend(calls)
        self._work.set()

    def _move(self, slots: Sequence[int], call: Callable[[], None]) -> None:
        moving = self._moving

        def move() -> None:
            try:
                call()
            except Exception as error:
                self._warn(error)
                with self._lock:
                    self._report(moving, slots, is_done=False)

        with self._lock:
            moving.update(slots)
        self._call(move)

    def _run(self) -> None:
        try:
            while self._calls or not self._is_closed:
                self._work.wait(POLL_S if self._moving else None)
                self._turn()
        except Exception as error:
            logger.error("The worker half of the KV connector '%s' failed.", self._name, exc_info=error)
            self.error = error
        try:
            self._half.close()
            self.has_ended = True
        except Exception as error:
            logger.warning("The worker half of the KV connector '%s' could not be closed.", self._name, exc_info=error)
        self._wake()

    def _turn(self) -> None:
        """Make the next call, and ask the half what has ended."""
        with self._lock:
            call = self._calls.popleft() if self._calls else None
            if not (self._calls or self._is_closed):
                self._work.clear()
            moving = self._moving  # before the call: reports after a `release` are of slots that are forgotten
        if call is not None:
            call()
        if moving:
            done, failed = self._half.poll()
            with self._lock:
                self._report(moving, done, is_done=True)
                self._report(moving, failed, is_done=False)
        if self._reports:
            self._wake()

    def _report(self, moving: set[int], slots: Sequence[int], *, is_done: bool) -> None:
        """Report slots of an arena, each once."""
        for slot in slots:
            if slot in moving:
                moving.discard(slot)
                if moving is self._moving:
                    self._reports.append((slot, is_done))

    def _wake(self) -> None:
        if self.wake is not None:
            self.wake()

    def _warn(self, error: Exception) -> None:
        """Log an error, at most once a minute: storage that is gone fails for every block."""
        now = time.monotonic()
        if self._warned is None or now - self._warned > 60:
            self._warned = now
            logger.warning(
                "The worker half of the KV connector '%s' failed to move KV blocks.", self._name, exc_info=error
            )
