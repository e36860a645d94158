"""The answer of a server over HTTP/1.1, as it arrives.

Owns: one answer: its headers, its parts, where it ends. Never does: parse HTTP itself (httptools does), or own a connection.
Called by: `http_endpoint`.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator

import httptools

from core_commands.client.endpoint import EndpointError

CHUNK = 64 * 1024
LONGEST_SILENCE_SECONDS = 3600.0
"""A server that says nothing for so long is given up."""


class HttpAnswer:
    """As `Answer`; httptools calls the `on_` methods.

    is_whole: whether all of it has come.
    keeps_connection: whether another request may follow then.
    """

    def __init__(self, reader: asyncio.StreamReader, name: str) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.arrived = 0.0
        self.has_headers = False
        self.is_whole = False
        self.keeps_connection = False
        self._reader = reader
        self._name = name
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []

    async def parts(self) -> AsyncIterator[bytes]:
        """As `Answer.parts`."""
        while True:
            parts, self._parts = self._parts, []
            if parts:
                yield parts[0] if len(parts) == 1 else b"".join(parts)
            elif self.is_whole:
                return
            else:
                await self.read()

    async def read(self) -> None:
        """What comes next. Raises EndpointError."""
        try:
            async with asyncio.timeout(LONGEST_SILENCE_SECONDS):
                data = await self._reader.read(CHUNK)
        except TimeoutError:
            raise EndpointError(f"{self._name}: silent for {LONGEST_SILENCE_SECONDS:g} s.") from None
        except OSError as error:
            raise EndpointError(f"{self._name}: the answer broke off: {reason(error)}.") from None
        self.arrived = time.perf_counter()
        if not data:
            self._end()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise EndpointError(f"{self._name}: what it answers is no HTTP/1.1: {error}.") from None

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """All headers are there; those of a 100 are not the answer's."""
        self.status = self._parser.get_status_code()
        self.has_headers = self.status >= 200

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """The end."""
        self.is_whole = self.has_headers
        self.keeps_connection = bool(self._parser.should_keep_alive())

    def _end(self) -> None:
        """The server closed the connection: the end of a body that says no length, else too early."""
        has_length = "content-length" in self.headers or "transfer-encoding" in self.headers
        if not self.has_headers or has_length:
            raise EndpointError(f"{self._name}: the connection was closed before the answer was whole.")
        self.is_whole = True


def reason(error: OSError) -> str:
    """In the system's words, without numbers and addresses."""
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    if error.errno is not None and error.errno > 0:  # those of looking up a name are negative
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
