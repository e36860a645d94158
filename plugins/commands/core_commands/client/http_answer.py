"""The answer of a server over HTTP/1.1, as it arrives.

Owns: one answer: its headers, its parts, its end. Never does: parse HTTP itself (httptools does), or own a connection.
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
"""Seconds without data after which a server counts as lost."""


class HttpAnswer:
    """An `Answer` over HTTP; httptools calls the `on_` methods.

    is_whole: whether it has arrived completely.
    keeps_connection: whether another request may then follow on the connection.
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
        """Yield the body's parts, as `Answer.parts` does."""
        while True:
            parts, self._parts = self._parts, []
            if parts:
                yield parts[0] if len(parts) == 1 else b"".join(parts)
            elif self.is_whole:
                return
            else:
                await self.read()

    async def read(self) -> None:
        """Read and parse the next bytes. Raises EndpointError."""
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
        """Store one header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Mark the headers as complete, except those of a 100 response, which precede the answer's."""
        self.status = self._parser.get_status_code()
        self.has_headers = self.status >= 200

    def on_body(self, data: bytes) -> None:
        """Store a part of the body."""
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """Mark the answer as complete."""
        self.is_whole = self.has_headers
        self.keeps_connection = bool(self._parser.should_keep_alive())

    def _end(self) -> None:
        """Handle a closed connection: the end of a body without a length, otherwise an interruption."""
        has_length = "content-length" in self.headers or "transfer-encoding" in self.headers
        if not self.has_headers or has_length:
            raise EndpointError(f"{self._name}: the connection was closed before the answer was whole.")
        self.is_whole = True


def reason(error: OSError) -> str:
    """Return the system's description of an error, without numbers and addresses."""
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    if error.errno is not None and error.errno > 0:  # errors of name resolution are negative
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
