"""Wishes that an engine process end: SIGTERM, from an operator or from what watches the memory of a machine.

Owns: noting them in the engine process, and seeing them in its owner's. Never does: end anything: the owner decides, since a
service manager sends SIGTERM to all processes of a service, of which the server is one. Called by: the engine's observer of
steps, and the owner's connection.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Final, Protocol

LOOK_S: Final = 0.2
"""Seconds between two looks; a read of eight bytes takes a microsecond."""


class Record(Protocol):
    """Memory that the owner reads."""

    def ask_to_end(self) -> None:
        """Note one more wish."""
        ...


class Asked(Protocol):
    """The process, from its owner's side."""

    @property
    def num_end_requests(self) -> int:
        """Return how often it was asked to end."""
        ...


class Listener(Protocol):
    """Learns that the engine was asked to end."""

    def asked_to_end(self) -> None:
        """Decide about it."""
        ...


def record_end_requests(record: Record) -> None:
    """Note each SIGTERM to this process from now on. Does nothing in a thread that gets no signals."""
    if threading.current_thread() is not threading.main_thread():
        return
    own = os.getpid()

    def note(number: int, frame: object) -> None:
        if os.getpid() == own:  # a fork has the handler and the memory, too
            record.ask_to_end()

    signal.signal(signal.SIGTERM, note)


async def tell_end_requests(process: Asked, listener: Listener) -> None:
    """Tell the listener of each wish, until cancelled."""
    told = 0
    while True:
        await asyncio.sleep(LOOK_S)
        found = process.num_end_requests
        if found > told:
            told = found
            listener.asked_to_end()
