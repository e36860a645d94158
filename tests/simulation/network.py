"""Simulated sockets: a ROUTER for the engine, and the connections of its clients.

Owns: delays, the order of messages, and what is lost when an end dies. Never does: look into messages.
Called by: the engine's loop (as its socket), `ZmqClient` (as its connection).

As over a socket of one machine, messages of one direction arrive in their order and are lost only with an end: the newest ones
of a process that is killed may not have left it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import zmq

from core.api.errors import EngineDeadError
from core.engine.loop import READABLE
from core_apis.processes.engine_events import EngineEvents, SharedEngine
from core_supervision.link.connection import EngineConnection, SocketConnection, Voice
from core_supervision.owned_engine import OwnedEngine
from tests.simulation.loop import CURRENT, Died, Process, SimLoop

if TYPE_CHECKING:
    from tests.simulation.engine import SimEngineProcess

DELAY_S = 0.004
"""Longest usual delay of a message."""


class Network:
    """The engines that can be reached, by address. delay_s: longest delay of a message."""

    def __init__(self, loop: SimLoop, delay_s: float = DELAY_S) -> None:
        self.loop = loop
        self.delay_s = delay_s
        self.routers: dict[str, Router] = {}
        self.connections: list[Wire] = []

    def delay(self) -> float:
        """Seconds until the next message arrives."""
        return self.loop.draw() * self.delay_s


class Wire:
    """Both ends of one connection between a client and an engine."""

    def __init__(self, network: Network, identity: bytes, client: Process, router: Router) -> None:
        self.identity = identity
        self.client = client
        self.router = router
        self.is_open = True
        self.received: deque[bytes] = deque()
        self.waiting: asyncio.Future[None] | None = None
        self.ended: asyncio.Future[None] = network.loop.create_future()
        self._network = network
        self._last_up = 0.0
        self._last_down = 0.0
        self._num_unsent = 0

    def up(self, frames: list[bytes]) -> None:
        """From the client to the engine."""
        loop = self._network.loop
        self._last_up = max(self._last_up, loop.now + self._network.delay())
        loop.at(self._last_up, self._arrive_up, frames)

    def down(self, payload: bytes) -> None:
        """From the engine to the client."""
        loop = self._network.loop
        self._last_down = max(self._last_down, loop.now + self._network.delay())
        loop.at(self._last_down, self._arrive_down, payload)

    def cut(self) -> None:
        """The engine has died: what has not left it is lost, and then the client sees its end."""
        loop = self._network.loop
        self.is_open = False
        when = max(self._last_down, loop.now) if loop.draw() < 0.5 else loop.now + loop.draw() * self._network.delay_s
        loop.at(when, self._end)

    def hang_up(self) -> None:
        """The client is gone."""
        self.is_open = False

    def _arrive_up(self, frames: list[bytes]) -> None:
        if self.router.process.alive:
            self.router.received.append([self.identity, *frames])

    def _arrive_down(self, payload: bytes) -> None:
        if not self.client.alive or self.ended.done():
            return
        self.received.append(payload)
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Router:
    """The engine's socket, with those methods of a ROUTER that the engine's loop calls."""

    def __init__(self, network: Network, process: SimEngineProcess, address: str) -> None:
        self.process = process
        self.received: deque[list[bytes]] = deque()
        self._network = network
        self._loop = network.loop
        self._wires: dict[bytes, Wire] = {}
        network.routers[address] = self

    def connect(self, wire: Wire) -> None:
        self._wires[wire.identity] = wire

    def setsockopt(self, option: int, value: int) -> None:
        pass

    def getsockopt(self, option: int) -> int:
        return READABLE if self.received else 0

    def poll(self, timeout_ms: float | None = None) -> int:
        until = math.inf if timeout_ms is None else self._loop.now + timeout_ms / 1000.0
        self._loop.block(self.process, self.received.__len__, until)
        return READABLE if self.received else 0

    def recv_multipart(self) -> list[bytes]:
        self._loop.block(self.process, self.received.__len__)
        self.process.point("message")
        return self.received.popleft()

    def send_multipart(self, frames: list[bytes]) -> None:
        if not self.process.alive:
            raise Died
        identity, payload = frames
        wire = self._wires.get(identity)
        if wire is None or not wire.is_open or not wire.client.alive:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        wire.down(bytes(payload))

    def die(self) -> None:
        """With the process."""
        for wire in self._wires.values():
            if wire.is_open:
                wire.cut()

    def close(self) -> None:
        pass


class SimSocket(SocketConnection):
    """The client's end. The address must be that of a router that exists, or existed."""

    network: Network  # of the schedule that runs

    def __init__(self, address: str) -> None:
        EngineConnection.__init__(self, address)
        network = self.network
        router = network.routers[address]
        identity = b"%d" % len(network.connections)
        self._process = CURRENT.get(network.loop.world)
        self._wire = Wire(network, identity, self._process, router)
        network.connections.append(self._wire)
        if router.process.alive:
            router.connect(self._wire)

    def post(self, payload: bytes) -> Awaitable[object]:
        self._up([payload])
        return _done(self.network.loop)

    async def until_ended(self, voice: Voice) -> EngineDeadError:
        await asyncio.shield(self._wire.ended)
        return EngineDeadError("The engine has closed the connection: its process ended.", cause="exit")

    def close(self) -> None:
        self._wire.hang_up()

    async def _send_greeting(self, parts: list[bytes]) -> None:
        self._up(parts)

    async def _payload(self) -> bytes:
        wire = self._wire
        while not wire.received:
            wire.waiting = self.network.loop.create_future()
            await wire.waiting
        return wire.received.popleft()

    def _up(self, frames: list[bytes]) -> None:
        if self._process.alive and self._wire.router.process.alive:
            self._wire.up(frames)


class SimOwned(OwnedEngine, SimSocket):
    """The owner's connection, with a simulated socket."""

    def __init__(self, process: SimEngineProcess) -> None:
        super().__init__(process)  # type: ignore[arg-type]


class SimShared(SharedEngine, SimSocket):
    """An API process' connection, with a simulated socket."""

    def __init__(self, address: str, news: EngineEvents) -> None:
        super().__init__(address, news)


def _done(loop: SimLoop) -> asyncio.Future[Any]:
    future = loop.create_future()
    future.set_result(None)
    return future
