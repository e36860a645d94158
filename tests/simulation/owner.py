"""Who owns the engine: a server that has it alone, or the product's supervisor of several API processes.

Owns: both ways to start and end a simulated server. Never does: handle deaths (the product does). Called by: the world.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from core.api.errors import CoreError, UserError
from core_apis.processes.supervisor import Supervisor
from core_config.served.server_config import ServerConfig
from core_frontend.async_engine import AsyncEngine
from core_runtime.specs.checkpoint import TokenizerSource
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.revival import OwnedEngineSource
from core_tokens.tokenizer import Tokenizer
from tests.simulation.api_process import Front
from tests.simulation.journal import Streams
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

TOKENIZER = Tokenizer.absent()
SERVER = ServerConfig()


class AloneServer:
    """One process that has its engine itself, and with a journal goes on with what the one before it left."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._start()

    def crash(self, number: int) -> None:
        """The server dies, its engine with it, and another one is started. Nothing of the engine's files is left."""
        world = self._world
        world.loop.drop(self.front.process)
        if world.engine is not None:
            world.engine.die()
        world.server_died()
        self._start()

    async def close(self) -> None:
        front = self.front
        front.stopping.set()
        await asyncio.wait({self._task})
        if front.streams is not None and not self._world.journal_failed:
            left = [entry.accepted.id for entry in front.streams.left() if entry.accepted is not None]
            if left:
                self._world.violated("journal", f"no request lives, and the journal has {left}")

    def _start(self) -> None:
        self.front = Front(self._world, 0)
        self._world.fronts[0] = self.front
        self._task = self.front.spawn(self._serve)

    async def _serve(self) -> None:
        world = self._world
        front = self.front
        if world.settings.journal:
            front.streams = await self._streams()
        source, client = await self._first()
        engine = AsyncEngine(world.config, TOKENIZER, client, source)
        front.engine = engine
        if front.streams is not None:
            front.streams.go_on()
        await front.stopping.wait()
        await engine.close()
        if front.streams is not None:
            await front.streams.journal.close()

    async def _streams(self) -> Streams:
        """The journal; without room for it a server does not start, and is started again."""
        while True:
            try:
                return Streams(self.front)
            except UserError:
                await asyncio.sleep(1.0)

    async def _first(self) -> tuple[OwnedEngineSource, ZmqClient]:
        """An engine; a server whose first one does not come up ends, and is started again."""
        while True:
            source = OwnedEngineSource(self._world.config)
            try:
                return source, await source.first()
            except CoreError:
                await asyncio.sleep(1.0)


class SharedServer:
    """A supervisor, its engine, and API processes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.process = Process("owner")
        server = ServerConfig(api_server_count=world.settings.num_apis)
        self._resolution: Any = SimpleNamespace(
            engine=world.config, server=server, manifest=SimpleNamespace(tokenizer=TokenizerSource())
        )
        self._stopping = asyncio.Event()
        self._task = world.loop.spawn(self.process, self._serve())

    def crash(self, number: int) -> None:
        """An API process dies."""
        front = self._world.fronts.get(number)
        if front is not None and front.child is not None:
            front.child.kill()

    async def close(self) -> None:
        self._stopping.set()
        await asyncio.wait({self._task})

    async def _serve(self) -> None:
        listener = SimpleNamespace(close=lambda: None)
        supervisor = Supervisor(self._resolution, listener)  # type: ignore[arg-type]
        await supervisor.start(None)  # type: ignore[arg-type]
        events = (self._stopping, asyncio.Event())
        await supervisor.run(*events, lambda: None)
        await supervisor.close()


async def start_with_fallbacks(resolution: Any, executor: object, process: object) -> tuple[Any, Any, Any, Tokenizer]:
    """In the place of the start of a real engine."""
    source = OwnedEngineSource(resolution.engine)
    return resolution, source, await source.first(), TOKENIZER
