"""What must hold when a schedule is over.

Owns: `Invariants`: the last questions to the server, and what may be left of anything. Never does: play events.
Called by: the world.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from core.api.errors import CoreError
from core.engine.clients import Client
from core.engine.core import EngineCore
from tests.simulation.events import Ask
from tests.simulation.loop import process_of

if TYPE_CHECKING:
    from tests.simulation.api_process import Front
    from tests.simulation.world import World

CALM_S = 15.0
"""Seconds that calls have, once nothing more happens, and as much as what is slow takes. Some may wait for a `resume` still."""
LAST_FAULTS_S = 2.0
"""Seconds after the last event in which its calls may still fail and engines die."""
SETTLE_S = 2.0
HANG_S = 700.0
"""Seconds until an engine that hangs is replaced: while nothing is known of steps, one may last ten minutes."""
PROBE_S = 60.0
END_S = 300.0
"""Seconds that everything has that was held, once nothing holds it any more."""
PROBE = Ask(family=29, length=5, max_tokens=3)


class Invariants:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def check_calm(self) -> None:
        """Nothing more happens: the state is one that somebody asked for, and says truly what the engine does."""
        world = self._world
        for limit_s in (LAST_FAULTS_S, CALM_S + 2.5 * world.slowest_s):
            if calls := world.calls():
                await asyncio.wait(calls, timeout=limit_s)
            world.faults.disarm()
        front = await self._settled()
        if front is None:
            world.violated("gone", "no API process answers any more")
            return
        state = await self._state(front)
        self._check_state(state)
        await self._check_told(state)
        if state["is_paused"] or state["is_sleeping"] or state["is_halted"]:
            await self._release(front)
            await self._probe(front, "although nothing holds it any more")
        else:
            await self._probe(front, "although its state says that it computes")
        await self._check_health(front)
        await self._all_end()
        await self._check_engine(front)

    def check_end(self) -> None:
        """The server was ended in good order: nothing of it is left."""
        world = self._world
        loop = world.loop
        current = asyncio.current_task(loop)
        left = [task for task in loop.all_tasks() if task is not current]
        alive = [task for task in left if process_of(task).alive]
        if alive:
            world.violated("tasks", f"{len(alive)} tasks are left, such as {alive[0].get_coro()!r}")
        if world.engine is not None and world.engine.alive:
            world.violated("engine", "the engine process is left")

    async def _settled(self) -> Front | None:
        """A front whose engine runs, some time after the last event: whatever died is known to be dead."""
        world = self._world
        await asyncio.sleep(SETTLE_S)
        end = world.loop.now + HANG_S
        while world.loop.now < end:
            for front in world.serving():
                engine = front.engine
                if engine is not None and engine.is_running and engine.restarts.paused_since is None:
                    return front
            await asyncio.sleep(0.3)
        return None

    async def _state(self, front: Front) -> dict[str, Any]:
        assert front.engine is not None
        state: dict[str, Any] = await self._patiently("lifecycle", lambda: front.engine.control.call("lifecycle"))  # type: ignore[union-attr]
        return state

    def _check_state(self, state: dict[str, Any]) -> None:
        world = self._world
        paused = world.book.may_be_paused()
        asleep = world.book.may_be_asleep()
        if state["is_paused"] not in paused and not world.record_lost:
            if state["is_paused"]:
                world.violated("paused", "it is paused, and nobody who asked for that holds it")
            else:
                world.violated("pause_lost", "it computes, although somebody has paused it")
        if state["is_sleeping"] not in asleep and not world.record_lost:
            if state["is_sleeping"]:
                world.violated("asleep", "it sleeps, and nobody asked for that")
            elif not world.sleep_failed:
                world.violated("sleep_lost", "it is awake, although somebody has put it to sleep")
        if state["is_halted"] and not (state["is_paused"] or state["is_sleeping"]):
            world.violated("halted", f"it computes nothing, and neither a pause nor sleep is the reason: {state}")

    async def _check_told(self, state: dict[str, Any]) -> None:
        """Every API process has heard what the engine is, for its answer to `/health`."""
        world = self._world
        await asyncio.sleep(SETTLE_S)
        for front in world.serving():
            engine = front.engine
            if engine is None or not engine.is_running or engine.restarts.paused_since is not None:
                continue
            told = (engine.stats.phase, [(holder.reason, holder.since) for holder in engine.stats.holders])
            true = (state["state"], [tuple(holder) for holder in state["reported_holders"]])
            if told != true:
                world.violated("told", f"an API process says {told}, and the engine is {true}")

    async def _probe(self, front: Front, although: str) -> None:
        """A new request is answered."""
        world = self._world
        if not front.serves:
            return
        answer = world.ask(front, PROBE)
        assert answer.task is not None
        await asyncio.wait({answer.task}, timeout=PROBE_S)
        if answer.ended is None:
            world.violated("stalled", f"a new request got no answer for {PROBE_S:g} s, {although}")

    async def _check_health(self, front: Front) -> None:
        if front.engine is None or not front.serves:
            return
        try:
            await front.engine.check_health()
        except CoreError as error:
            self._world.violated("health", f"requests are answered, and health says: {error}")

    async def _release(self, front: Front) -> None:
        """Whoever operates the server wakes the engine and ends all pauses."""
        assert front.engine is not None
        control = front.engine.control
        await self._patiently("wake_up", control.wake_up)
        await self._patiently("resume", control.resume)

    async def _patiently(self, what: str, call: Any) -> Any:
        """Make a call until it goes well; a violation when it never does."""
        last: Exception | None = None
        for _ in range(60):  # seconds: the next engine may have to fall asleep first, which takes up to 40 (`slow`)
            try:
                async with asyncio.timeout(PROBE_S):
                    return await call()
            except (CoreError, TimeoutError) as error:
                last = error
                await asyncio.sleep(1.0)
        self._world.violated("refuses", f"{what} never goes well: {last!r}")
        raise Hopeless

    async def _all_end(self) -> None:
        """Every request and every call has ended, and was told why."""
        world = self._world
        waited = [answer.task for answer in world.answers if answer.task is not None]
        await asyncio.wait([*waited, *world.calls()], timeout=END_S)
        for answer in world.answers:
            if answer in self._running():
                world.violated("unanswered", f"{answer.name} has not ended")
            elif answer.ended is not None:
                answer.judge(world)
        if not all(call.done() for call in world.calls()):
            world.violated("call", "a call never returns")

    def _running(self) -> list[Any]:
        """Requests whose clients still wait: those of API processes that died do not."""
        return [answer for answer in self._world.answers if answer.task is not None and not answer.task.done()]

    async def _check_engine(self, front: Front) -> None:
        """Nothing of any request is left."""
        world = self._world
        assert front.engine is not None
        await self._patiently(
            "start_weight_update", front.engine.control.start_weight_update
        )  # drops what was gathered
        await asyncio.sleep(1.0)
        await self._patiently("check_integrity", front.engine.check_integrity)
        for each in world.serving():
            self._check_front(each)
        if world.engine_loop is None or world.engine is None or not world.engine.alive:
            return
        core: EngineCore = world.engine_loop._core
        stats = core.stats()
        if stats.num_running or stats.num_waiting or stats.kv_cache_usage:
            left = f"{stats.num_running} running, {stats.num_waiting} waiting, {stats.kv_cache_usage:.2f} of the cache"
            world.violated("left", f"no request lives, and the scheduler has {left}")
        clients: list[Client] = list(world.engine_loop._clients)
        live = {client.number: dict(client.live) for client in clients if client.live}
        if live:
            world.violated("left", f"no request lives, and the engine has {live} for its clients")
        expected = {front.engine._client.ready.client for front in world.serving() if front.engine} | {0}
        if {client.number for client in clients} - expected:
            world.violated("clients", f"the engine has clients that are gone: {[c.number for c in clients]}")
        in_use = {source.digest for source in core.config.weights.sources}
        if world.kept_tensors - in_use:
            world.violated("leak", f"tensors that nobody needs are kept: {sorted(world.kept_tensors - in_use)}")

    def _check_front(self, front: Front) -> None:
        engine = front.engine
        assert engine is not None
        counts = {
            "requests": engine.num_live,
            "places in the queue": len(engine.queue),
            "entries of the ledger": len(engine._client._ledger),
            "calls": len(engine._client._calls),
        }
        left = {name: count for name, count in counts.items() if count}
        if left.get("calls") == 1:
            del left["calls"]  # a sign of life that was asked for
        num_restarts = sum(engine.restarts.num_restarts.values())
        if num_restarts > self._world.num_deaths:
            self._world.violated("dismissed", f"API process {front.number} lost an engine {num_restarts} times")
        if left:
            self._world.violated("left", f"API process {front.number} has {left} of requests that have ended")


class Hopeless(Exception):
    """There is nothing more to learn of this server."""
