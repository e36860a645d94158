"""A server over HTTP/1.1: kept connections, TLS, unix sockets.

Owns: connections, and their use again. Never does: parse HTTP (httptools does), retry, or follow redirects. Called by: the
commands that ask a server. It is asyncio's own streams and one parser: on two cores a client library takes more than
the server.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from urllib.parse import unquote, urlsplit

import httptools

from core.api.errors import UserError
from core.client.endpoint import EndpointError

CHUNK = 64 * 1024
BUFFER = 1024 * 1024
CONNECT_SECONDS = 30.0
LONGEST_SILENCE_SECONDS = 3600.0
"""A server that says nothing for so long is given up."""


class HttpEndpoint:
    """One server.

    url: http://HOST:PORT, https://HOST, or unix:/PATH.TO.SOCKET; a path before /v1 stays, /v1 itself may be written or not.
    api_key: sent with every request; None: none is.
    verify: whether a TLS certificate has to be valid.

    Raises UserError for another url.
    """

    def __init__(self, url: str, api_key: str | None = None, *, verify: bool = True) -> None:
        self.name = url
        parts = urlsplit(url)
        self._socket = ""
        self._prefix = ""
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "unix" and parts.path:
            self._socket = unquote(parts.path)
            self._host, self._port = "localhost", 0
        elif parts.scheme in ("http", "https") and parts.hostname:
            self._prefix = parts.path.rstrip("/").removesuffix("/v1")
            self._host = parts.hostname
            self._port = _port(url) or (443 if parts.scheme == "https" else 80)
            if parts.scheme == "https":
                self._tls = _tls_context(verify)
        else:
            raise UserError(f"--url {url}: expected http://HOST:PORT, https://HOST or unix:/PATH.")
        self._fixed = _fixed_headers(parts.netloc.rpartition("@")[2] or self._host, api_key)
        self._idle: list[Connection] = []

    @asynccontextmanager
    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[HttpAnswer]:
        """As `Endpoint.ask`."""
        message = self._message(method, path, body, headers or {})
        connection, answer = await self._begin(message)
        try:
            yield answer
        finally:
            if answer.is_whole and answer.keeps_connection:
                self._idle.append(connection)
            else:
                connection.close()

    async def close(self) -> None:
        """As `Endpoint.close`."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _message(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """A request's bytes. A header with a line break would be two: it is refused."""
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", *self._fixed, f"Content-Length: {len(body)}"]
        for name, value in headers.items():
            if "\n" in value or "\r" in value or not name.isprintable():
                raise UserError(f"The header {name!r} holds a line break; leave it out.")
            lines.append(f"{name}: {value}")
        head = "\r\n".join(lines) + "\r\n\r\n"
        return head.encode("utf-8", "surrogateescape") + body

    async def _begin(self, message: bytes) -> tuple[Connection, HttpAnswer]:
        """Send on a kept connection; when that one is dead, on a new one. Returns when the answer's headers are there."""
        while self._idle:
            connection = self._idle.pop()
            with suppress(EndpointError):
                if not connection.has_ended:
                    return connection, await connection.send(message, self.name)
            connection.close()
        connection = await self._connect()
        try:
            return connection, await connection.send(message, self.name)
        except BaseException:
            connection.close()
            raise

    async def _connect(self) -> Connection:
        opening = (
            asyncio.open_unix_connection(self._socket, limit=BUFFER)
            if self._socket
            else asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=BUFFER)
        )
        try:
            reader, writer = await asyncio.wait_for(opening, CONNECT_SECONDS)
        except TimeoutError:
            raise EndpointError(f"{self.name}: no connection within {CONNECT_SECONDS:g} s.") from None
        except OSError as error:
            raise EndpointError(f"{self.name}: no connection: {_reason(error)}.") from None
        return Connection(reader, writer)


class Connection:
    """One connection, for one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def has_ended(self) -> bool:
        """Whether the server has closed it."""
        return self.reader.at_eof() or self.writer.is_closing()

    async def send(self, message: bytes, name: str) -> HttpAnswer:
        """Send a request and read up to the end of the answer's headers. Raises EndpointError."""
        answer = HttpAnswer(self.reader, name)
        try:
            self.writer.write(message)
            await self.writer.drain()
        except OSError as error:
            raise EndpointError(f"{name}: the request could not be sent: {_reason(error)}.") from None
        while not answer.has_headers:
            await answer.read()
        return answer

    def close(self) -> None:
        """Close it; what is on the way is dropped."""
        self.writer.close()


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
            raise EndpointError(f"{self._name}: the answer broke off: {_reason(error)}.") from None
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


def _fixed_headers(host: str, api_key: str | None) -> list[str]:
    """The headers of every request."""
    lines = [f"Host: {host}", "Content-Type: application/json", "Accept: */*", "User-Agent: core"]
    if api_key:
        if not api_key.isprintable():
            raise UserError("--api-key: the key holds a control character, so it cannot be sent.")
        lines.append(f"Authorization: Bearer {api_key}")
    return lines


def _tls_context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        raise UserError(f"--url {url}: the port is no number up to 65535.") from None


def _reason(error: OSError) -> str:
    """In the system's words, without numbers and addresses."""
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return error.strerror or str(error) or type(error).__name__
