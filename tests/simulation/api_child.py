"""API processes as their supervisor sees them, and the product's `ApiProcess` within.

Owns: `SimApiChild`, messages both ways, and the end of such a process. Never does: answer requests (its front does).
Called by: the product's supervisor.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from core_apis.processes.api_messages import Begin, Stop
from core_apis.processes.api_process import ApiProcess
from core_frontend.async_engine import AsyncEngine
from tests.simulation.api_process import Front

if TYPE_CHECKING:
    from tests.simulation.world import World


class SimApiChild:
    """One API process as its supervisor sees it. Its public part is that of `ApiChild`."""

    world: World  # of the schedule that runs

    def __init__(self, number: int) -> None:
        self.number = number
        self.clients: dict[int, tuple[int, int]] = {}
        self._has_begun = False
        self.front = Front(self.world, number)
        self._to_supervisor: asyncio.Queue[Any] = asyncio.Queue()
        self._to_api: asyncio.Queue[Any] = asyncio.Queue()
        self.front.child = self
        self.world.fronts[number] = self.front
        self._task = self.front.spawn(self._serve)
        self._task.add_done_callback(lambda task: self._hang_up())

    @classmethod
    async def spawn(
        cls, number: int, listener: object, max_callback_ms: float | None, media: int | None
    ) -> SimApiChild:
        return cls(number)

    def begin(self, message: Begin) -> None:
        self._has_begun = True
        self._deliver(self._to_api, message)

    def tell(self, news: object) -> None:
        if self._has_begun:
            self._deliver(self._to_api, news)

    def send(self, message: object) -> None:
        self._deliver(self._to_api, message)

    def stop(self, *, at_once: bool) -> None:
        self._deliver(self._to_api, Stop(at_once))

    async def receive(self) -> Any:
        return await self._to_supervisor.get()

    async def ended(self) -> str:
        return "ended"

    def kill(self) -> None:
        """It dies: its connections are cut, and its supervisor hears of the end."""
        if self.front.process.alive:
            self.world.loop.drop(self.front.process)
            self._hang_up()

    def _hang_up(self) -> None:
        self._deliver(self._to_supervisor, None)

    def _deliver(self, queue: asyncio.Queue[Any], message: object) -> None:
        loop = self.world.loop
        loop.at(loop.now + 0.001, queue.put_nowait, message)

    async def _serve(self) -> None:
        channel = SimpleNamespace(
            send=lambda message: self._deliver(self._to_supervisor, message), receive=self._to_api.get
        )
        begin = await self._to_api.get()
        if isinstance(begin, Begin):
            process = ApiProcess(channel, begin)  # type: ignore[arg-type]
            hearing = asyncio.ensure_future(process.hear())
            try:
                await process.serve(self.front)  # type: ignore[arg-type]
            finally:
                hearing.cancel()


async def serve_requests(
    server: object,
    front: Front,
    engine: AsyncEngine,
    events: tuple[asyncio.Event, asyncio.Event],
    on_ready: Any,
    **_: Any,
) -> None:
    """In the place of HTTP: the front answers until it is told to stop."""
    front.engine = engine
    on_ready(SimpleNamespace(metrics=SimpleNamespace(share=lambda number, others: None)))
    await events[0].wait()
    front.stopping.set()
