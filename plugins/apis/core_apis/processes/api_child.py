"""One API process from its supervisor's point of view.

Owns: spawning the process, the channel to it, its end. Never does: decide whether it is restarted. Called by: the
supervisor.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess

import msgspec

from core_apis.processes.api_messages import PULSE_S, Alive, Begin, Channel, EngineEvent, FromApi, Stop
from core_supervision.death import how_ended
from core_supervision.helpers.lane import spawn_on_socket

KILL_S = 5.0

HANG_S = 60.0
"""Seconds of silence after which a process counts as hung."""


class ApiChild:
    """A running child process.

    number: from 0; a replacement has the number of the child it replaces.
    clients: by engine, its epoch and its number for this process; empty: the process has never served.
    patience_s: seconds of silence after which the process is killed.
    has_begun: whether it has been told to serve.
    """

    def __init__(
        self, number: int, process: subprocess.Popen[bytes], channel: Channel, patience_s: float = HANG_S
    ) -> None:
        self.number = number
        self.clients: dict[int, tuple[int, int]] = {}
        self.patience_s = patience_s
        self._hung = False
        self._process = process
        self._channel = channel
        self.has_begun = False

    @classmethod
    async def spawn(
        cls, number: int, listener: socket.socket, max_callback_ms: float | None = None, media: int | None = None
    ) -> ApiChild:
        """Start a process that accepts from `listener`. It imports its modules, and then waits for `begin`.

        max_callback_ms: see `ServerConfig`; the event loop needs it before the first message.
        media: descriptor of the memory in which processed media are shared; it has the same number in the process.
        """
        listening = listener.fileno()
        words = [str(word) for word in (listening, max_callback_ms) if word is not None]
        fds = (listening,) if media is None else (listening, media)
        process, connection = spawn_on_socket("core_apis.processes.api_process", *words, fds=fds)
        return cls(number, process, await Channel.open(connection, FromApi))

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def begin(self, begin: Begin) -> None:
        """Send `Begin`, which makes the process serve."""
        self.has_begun = True
        self.send(begin)

    def tell(self, news: EngineEvent) -> None:
        """Report an engine event to the process.

        Before `begin` nothing is sent: `Begin` itself names the current engine.
        """
        if self.has_begun:
            self.send(news)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; a process that is gone is ignored."""
        self._channel.send(message)

    async def receive(self) -> FromApi | None:
        """Return the process's next message; None if it has ended, or hung and was killed."""
        message = await self._next()
        while isinstance(message, Alive):
            message = await self._next()
        return message

    async def _next(self) -> FromApi | None:
        coming: asyncio.Future[FromApi | None] = asyncio.ensure_future(self._channel.receive())
        try:
            # After this process or the whole machine was suspended, the silence says nothing: wait for another pulse.
            for patience in (self.patience_s, min(self.patience_s, 2 * PULSE_S)):
                done, _ = await asyncio.wait({coming}, timeout=patience)
                if done:
                    return coming.result()
        finally:
            coming.cancel()
        self._hung = True
        self.kill()
        return None

    def stop(self, *, at_once: bool) -> None:
        """Ask the process to end."""
        self.send(Stop(at_once))

    def kill(self) -> None:
        """Kill the process; harmless if it has ended."""
        self._process.kill()

    async def ended(self) -> str:
        """Describe how the process ended, in words for a sentence, after it has hung up.

        It is killed if it does not end.
        """
        self._channel.close()
        try:
            code = await asyncio.to_thread(self._process.wait, KILL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = await asyncio.to_thread(self._process.wait)
        if self._hung:
            return f"gave no sign of life for {self.patience_s:g} s and was killed"
        return how_ended(code)
