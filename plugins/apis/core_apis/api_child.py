"""One API process as its supervisor sees it.

Owns: spawning it, the channel to it, its end. Never does: decide whether it is started again. Called by: the supervisor.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess

import msgspec

from core.processes import child_environment, python_command
from core_apis.api_messages import PULSE_S, Alive, Begin, Channel, FromApi, News, Stop
from core_supervision.death import how_ended

KILL_S = 5.0

HANG_S = 60.0
"""Seconds of silence after which a process hangs."""


class ApiChild:
    """A running child.

    number: from 0; a child that is started in place of another has its number.
    client: the number that the engine knows it by; None: it has never served. epoch: of that engine.
    patience_s: seconds of silence after which it is killed.
    """

    def __init__(
        self, number: int, process: subprocess.Popen[bytes], channel: Channel, patience_s: float = HANG_S
    ) -> None:
        self.number = number
        self.client: int | None = None
        self.epoch = 0
        self.patience_s = patience_s
        self._hung = False
        self._process = process
        self._channel = channel
        self._begun = False

    @classmethod
    async def spawn(cls, number: int, listener: socket.socket, max_callback_ms: float | None = None) -> ApiChild:
        """Start a process that accepts from `listener`. It imports what it needs, and then waits for `begin`.

        max_callback_ms: see `ServerConfig`; it is needed for the event loop, before there is a message.
        """
        ours, theirs = socket.socketpair()
        words = [str(theirs.fileno()), str(listener.fileno())]
        if max_callback_ms is not None:
            words.append(str(max_callback_ms))
        command = python_command("core_apis.api_process", *words)
        with theirs:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    env=child_environment(),
                    pass_fds=(theirs.fileno(), listener.fileno()),
                    process_group=0,  # a terminal's Ctrl-C is for us
                )
            except BaseException:
                ours.close()
                raise
        return cls(number, process, await Channel.open(ours, FromApi))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def begin(self, begin: Begin) -> None:
        """Have it serve."""
        self._begun = True
        self.send(begin)

    def tell(self, news: News) -> None:
        """Tell it what becomes of the engine, unless it has not begun: then it will hear of the one that runs."""
        if self._begun:
            self.send(news)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, unless it is gone."""
        self._channel.send(message)

    async def receive(self) -> FromApi | None:
        """Its next message; None when it has ended, or hung and was killed."""
        message = await self._next()
        while isinstance(message, Alive):
            message = await self._next()
        return message

    async def _next(self) -> FromApi | None:
        coming: asyncio.Future[FromApi | None] = asyncio.ensure_future(self._channel.receive())
        try:
            # after a time in which this process, or the machine, was stopped the other end needs another pulse
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
        """Have it end."""
        self.send(Stop(at_once))

    def kill(self) -> None:
        """End it; harmless when it has ended."""
        self._process.kill()

    async def ended(self) -> str:
        """When it has hung up: how it ended, as words for a sentence. It is killed if it does not end."""
        self._channel.close()
        try:
            code = await asyncio.to_thread(self._process.wait, KILL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = await asyncio.to_thread(self._process.wait)
        if self._hung:
            return f"gave no sign of life for {self.patience_s:g} s and was killed"
        return how_ended(code)
