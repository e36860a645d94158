"""The registry of all open connections: their number, which one is closed to admit a new one, and how long one may be
silent.

Owns: the registry, its limits, one log line about refusals. Never does: parse, or answer a request. Called by:
`Connection` (opens, closes, settles) and the HTTP server (sweeps).
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Protocol

from core.api.errors import RequestError
from core_formats.server_limits import ServerLimits

LINGER_SECONDS = 2.0  # time for a refused client to read its answer
LOG_SECONDS = 60.0  # interval between two log lines about refusals

logger = logging.getLogger("core_apis")


class OpenConnection(Protocol):
    """A connection as the registry sees it; `core_apis.server.connection.Connection` documents the fields."""

    transport: Any
    flow: Any
    silent_since: float
    reading_since: float | None
    refused: bool
    unsent: int

    @property
    def busy(self) -> bool:
        """Whether an answer is under way."""
        ...

    def refuse(self, error: RequestError) -> None:
        """Answer with `error` and close."""
        ...


class Connections:
    """The registry of the connections of one server. is_ending: whether each answer is the last one of its connection."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limit = limits.max_connections
        self.max_header_size = limits.max_header_size
        self.is_ending = False
        self._read_timeout = limits.request_read_timeout
        self._silence = limits.keep_alive_timeout
        self._open: dict[OpenConnection, None] = {}
        self._idle: dict[OpenConnection, None] = {}  # least recently active first
        self._refusals: Counter[str] = Counter()
        self._next_line = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, newcomer: OpenConnection) -> bool:
        """Whether there is room, if necessary after closing the connection that has been silent longest."""
        if len(self._open) >= self.limit:
            silent = (connection for connection in self._idle if not (connection.busy or connection.unsent))
            victim = next(silent, None)
            if victim is None:
                return False
            victim.transport.abort()
            self.forget(victim)
        self._open[newcomer] = None
        self._idle[newcomer] = None
        return True

    def forget(self, connection: OpenConnection) -> None:
        """Remove a connection that is gone."""
        self._open.pop(connection, None)
        self._idle.pop(connection, None)

    def settle(self, connection: OpenConnection) -> None:
        """Restart the silence of a connection that has sent something, or has got its answer."""
        self._idle.pop(connection, None)
        if connection in self._open and not connection.busy:
            self._idle[connection] = None

    def note(self, code: str) -> None:
        """Count a refusal for the log."""
        self._refusals[code] += 1

    def sweep(self, now: float) -> None:
        """Close connections that have been silent, or have not completed their request, for too long.

        now: of the loop's clock.
        """
        for connection in list(self._open):
            if connection.busy:
                self._check_reader(connection, now)
            else:
                self._check(connection, now)
        if self._refusals and now >= self._next_line:
            counts = ", ".join(f"{count} {code}" for code, count in self._refusals.items())
            logger.warning("Refused before they were requests: %s; the next line about it comes in a minute.", counts)
            self._refusals.clear()
            self._next_line = now + LOG_SECONDS

    def _check_reader(self, connection: OpenConnection, now: float) -> None:
        """Drop an answer whose client does not read it."""
        unsent = connection.transport.get_write_buffer_size()
        if unsent == 0 or unsent != connection.unsent:
            connection.unsent, connection.silent_since = unsent, now
        elif now - connection.silent_since > self._silence:
            self.note("answer_not_read")
            connection.transport.abort()

    def _check(self, connection: OpenConnection, now: float) -> None:
        unsent = connection.transport.get_write_buffer_size()
        if unsent != connection.unsent:  # a client that reads its answer slowly is not silent
            connection.unsent, connection.silent_since = unsent, now
        silence = now - connection.silent_since
        if connection.refused or connection.transport.is_closing():
            if silence > LINGER_SECONDS:
                connection.transport.abort()
        elif connection.reading_since is None:
            if silence > self._silence:
                connection.transport.close()
        elif now - connection.reading_since > self._read_timeout and not connection.flow.read_paused:
            message = (
                f"The request did not come within {self._read_timeout:g} s (--request-read-timeout); send it faster."
            )
            connection.refuse(RequestError(message, status=408, code="request_too_slow"))
