"""The models of a server while it runs: their processes follow what `Turns` decides.

Owns: the loop that carries out changes, what waits for them, failures of a model. Never does: decide whose turn it is, or
read a request. Called by: `core_commands.several.launch` (runs it), `core_commands.several.application`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Mapping

from core.api.errors import CoreError, RequestError
from core_commands.several.child import ChildError, ChildServer
from core_commands.several.turns import Change, Seat, Turns

logger = logging.getLogger(__name__)

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
"""Seconds before a model that failed is started again: twice as long after each failure in a row."""


class Keeper:
    """The models and their processes.

    turns: their states. children: their servers, by name.
    most_waiting: limit of requests that wait for a model.
    changes: how many there were of each kind.
    """

    def __init__(self, turns: Turns, children: Mapping[str, ChildServer], most_waiting: int) -> None:
        self.turns = turns
        self.children = children
        self.changes: dict[str, int] = {"wake": 0, "sleep": 0, "start": 0, "failure": 0}
        self._most_waiting = most_waiting
        self._news = asyncio.Event()
        self._failures: dict[str, int] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._outcomes: dict[str, set[asyncio.Future[None]]] = {}

    @contextlib.asynccontextmanager
    async def using(
        self,
        name: str,
        keep_alive: float | None = None,
        waiting: contextlib.AbstractContextManager[object] | None = None,
    ) -> AsyncIterator[ChildServer]:
        """Wait until a model is awake, and keep it so within the block. waiting: entered for the wait.

        Raises RequestError (503), and what `waiting` raises.
        """
        seat = self.turns.seats[name]
        with contextlib.nullcontext() if waiting is None else waiting:
            await self._admitted(seat)
        try:
            yield self.children[name]
        finally:
            self.turns.leave(seat, keep_alive)
            self._news.set()

    async def load(self, name: str, keep_alive: float | None = None) -> None:
        """Wake a model. Raises RequestError."""
        async with self.using(name, keep_alive):
            pass

    async def unload(self, name: str) -> None:
        """Put a model to sleep as soon as nothing uses it; returns when it sleeps. Raises RequestError."""
        seat = self.turns.seats[name]
        if seat.pinned:
            raise RequestError(
                f"The model '{name}' is pinned: it keeps its memory. Leave `pinned` out of its entry to unload it.",
                status=409,
                code="model_pinned",
            )
        while seat.state not in ("absent", "asleep"):
            self.turns.give_way(seat)
            self._news.set()
            await self._outcome(seat)

    async def run(self) -> None:
        """Carry out changes until cancelled."""
        while True:
            self._news.clear()
            change = self.turns.decide()
            if change is not None:
                await self._carry_out(change)
                continue
            at = self.turns.next_time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if at is None else max(0.0, at - time.monotonic())):
                    await self._news.wait()

    async def close(self) -> None:
        """End all processes in good order."""
        for watcher in self._watchers.values():
            watcher.cancel()
        await asyncio.gather(*(child.end() for child in self.children.values()))

    def kill(self) -> None:
        """End all processes at once."""
        for child in self.children.values():
            child.kill()

    async def _admitted(self, seat: Seat) -> None:
        """Wait until a request may be sent to a model."""
        self._check_failure(seat)
        seat.cause = ""  # of an earlier failure, after which the model is now started again
        if len(seat.waiting) >= self._most_waiting:
            raise RequestError(
                f"{len(seat.waiting)} requests wait for the model '{seat.name}' (--max-num-queued-reqs). Try again in 1 s.",
                status=429,
                code="model_queue_full",
                retry_after=1,
            )
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = self.turns.enter(seat, lambda: None if admitted.done() else admitted.set_result(None))
        self._news.set()
        failing = asyncio.ensure_future(self._failed(seat))
        try:
            await asyncio.wait((admitted, failing), return_when=asyncio.FIRST_COMPLETED)
            if not admitted.done():
                self._check_failure(seat)
        except BaseException:
            if admitted.done():
                self.turns.leave(seat)
            raise
        finally:
            failing.cancel()
            self.turns.give_up(seat, waiter)
            self._news.set()

    async def _failed(self, seat: Seat) -> None:
        """Return when a model has failed."""
        while not seat.cause:
            await self._outcome(seat)

    def _check_failure(self, seat: Seat) -> None:
        """Raise RequestError while a model that failed is not started again."""
        left = seat.not_before - time.monotonic()
        if seat.cause and left > 0:
            raise RequestError(
                f"{seat.cause} It is started again for a request in {math.ceil(left)} s.",
                status=503,
                code="model_failed",
                retry_after=math.ceil(left),
            )

    async def _outcome(self, seat: Seat) -> None:
        """Return after the next change of a model's state."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._outcomes.setdefault(seat.name, set())
        waiting.add(told)
        try:
            await told
        finally:
            waiting.discard(told)

    def _tell(self, seat: Seat) -> None:
        for told in self._outcomes.pop(seat.name, set()):
            if not told.done():
                told.set_result(None)
        self._news.set()

    async def _carry_out(self, change: Change) -> None:
        """Change a model's state. A failure is the model's own."""
        seat, child = change.seat, self.children[change.seat.name]
        begin = time.monotonic()
        try:
            if change.kind == "sleep":
                seat.state = "falling asleep"
                await child.sleep()
                self.turns.settle(seat, "asleep")
                self.changes["sleep"] += 1
            else:
                await self._wake(seat, child)
        except (ChildError, OSError) as error:
            await self._fail(seat, child, str(error))
            return
        took = time.monotonic() - begin
        if change.kind == "sleep":
            seat.change_s = took
        else:
            seat.change_s += took
        logger.info("Model '%s' is %s after %.2f s.", seat.name, seat.state, took)
        self._tell(seat)

    async def _wake(self, seat: Seat, child: ChildServer) -> None:
        """Wake or start a model's server."""
        seat.cause = ""
        if child.is_running:
            seat.state = "waking"
            await child.wake_up()
            self.changes["wake"] += 1
        else:
            seat.state, seat.change_s = "starting", 0.0
            await child.start()
            self._watchers[seat.name] = asyncio.ensure_future(self._watch(seat, child))
            self.changes["start"] += 1
        self._failures[seat.name] = 0
        self.turns.settle(seat, "awake")

    async def _watch(self, seat: Seat, child: ChildServer) -> None:
        """Note the end of a server that nobody has asked to end."""
        code = await child.ended()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        await self._fail(seat, child, f"The server of model '{seat.name}' ended with {how}; its log says why.")

    async def _fail(self, seat: Seat, child: ChildServer, cause: str) -> None:
        """Forget a server that failed; it is started again when it is asked for."""
        watcher = self._watchers.pop(seat.name, None)
        if watcher is not None and watcher is not asyncio.current_task():
            watcher.cancel()
        self.changes["failure"] += 1
        number = self._failures[seat.name] = self._failures.get(seat.name, 0) + 1
        delay = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (number - 1))
        logger.error("%s Others are served; it is started again for a request after %g s.", cause, delay)
        with contextlib.suppress(CoreError):
            await child.end(patience=1.0)
        seat.cause, seat.not_before = cause, time.monotonic() + delay
        self.turns.settle(seat, "absent")
        self._tell(seat)
