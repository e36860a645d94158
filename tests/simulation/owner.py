"""Who owns the engine: a server that has it alone, or the product's supervisor of several API processes.

Owns: both ways to start and end a simulated server. Never does: handle deaths (the product does). Called by: the world.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from core.api.checkpoint import TokenizerSource
from core.api.config import ServerConfig
from core.engine.async_engine import AsyncEngine
from core.engine.revival import OwnedEngineSource
from core.serving.supervisor import Supervisor
from core.tokens.tokenizer import Tokenizer
from tests.simulation.api_process import Front, SimApiChild
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

TOKENIZER = Tokenizer.absent()
SERVER = ServerConfig()


class AloneServer:
    """One process that has its engine itself."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.front = Front(world, 0)
        world.fronts[0] = self.front
        self._task = self.front.spawn(self._serve)

    async def close(self) -> None:
        self.front.stopping.set()
        await asyncio.wait({self._task})

    async def _serve(self) -> None:
        source = OwnedEngineSource(self._world.config)
        client = await source.first()
        engine = AsyncEngine(self._world.config, TOKENIZER, client, source)
        self.front.engine = engine
        await self.front.stopping.wait()
        await engine.close()


class SharedServer:
    """A supervisor, its engine, and API processes."""

    def __init__(self, world: World) -> None:
        self.process = Process("owner")
        server = ServerConfig(api_server_count=world.settings.num_apis)
        self._resolution: Any = SimpleNamespace(
            engine=world.config, server=server, manifest=SimpleNamespace(tokenizer=TokenizerSource())
        )
        self._stopping = asyncio.Event()
        self._task = world.loop.spawn(self.process, self._serve())

    async def close(self) -> None:
        self._stopping.set()
        await asyncio.wait({self._task})

    async def _serve(self) -> None:
        supervisor = Supervisor(self._resolution, None)  # type: ignore[arg-type]
        await supervisor.start(None)  # type: ignore[arg-type]
        events = (self._stopping, asyncio.Event())
        await supervisor.run(*events, lambda: None)
        await supervisor.close()


async def start_with_fallbacks(resolution: Any, executor: object, process: object) -> tuple[Any, Any, Any, Tokenizer]:
    """In the place of the start of a real engine."""
    source = OwnedEngineSource(resolution.engine)
    return resolution, source, await source.first(), TOKENIZER


def kill_api(world: World, number: int) -> None:
    """An API process dies."""
    front = world.fronts.get(number)
    child = getattr(front, "child", None)
    if isinstance(child, SimApiChild):
        child.kill()
