"""An HTTP/1.1 endpoint: persistent connections, TLS, unix sockets.

Owns: connections and their reuse. Never does: parse answers, retry, or follow redirects. Called by: the commands that
use a server. It uses asyncio's own streams and one parser: on two cores a client library would take more time than the
server.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from urllib.parse import unquote, urlsplit

from core.api.errors import UserError
from core_commands.client.endpoint import EndpointError
from core_commands.client.http_answer import HttpAnswer, reason

BUFFER = 1024 * 1024
CONNECT_SECONDS = 30.0


class HttpEndpoint:
    """A server reached over HTTP.

    url: http://HOST:PORT, https://HOST, or unix:/PATH.TO.SOCKET; a path before /v1 is kept, /v1 itself is optional.
    api_key: sent with every request, or None.
    verify: whether the TLS certificate must be valid.

    Raises UserError for any other url.
    """

    def __init__(self, url: str, api_key: str | None = None, *, verify: bool = True) -> None:
        self.name = url
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise UserError(f"--url {url}: {error}; expected http://HOST:PORT, https://HOST or unix:/PATH.") from None
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
        """Send one request, as `Endpoint.ask` does. headers: in place of our own of the same name."""
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
        """Close all idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _message(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Return a request's bytes. Rejects a header with a line break, which would become two headers."""
        given = {name.lower() for name in headers}
        fixed = [line for line in self._fixed if line.partition(":")[0].lower() not in given]
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", *fixed, f"Content-Length: {len(body)}"]
        for name, value in headers.items():
            if "\n" in value or "\r" in value or not name.isprintable():
                raise UserError(f"The header {name!r} holds a line break; leave it out.")
            lines.append(f"{name}: {value}")
        head = "\r\n".join(lines) + "\r\n\r\n"
        return head.encode("utf-8", "surrogateescape") + body

    async def _begin(self, message: bytes) -> tuple[Connection, HttpAnswer]:
        """Send on a kept connection, or on a new one if that is dead. Returns when the answer's headers have arrived."""
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
            raise EndpointError(f"{self.name}: no connection: {reason(error)}.") from None
        except ValueError:  # for example a name with an empty label, which no resolver accepts
            raise EndpointError(f"{self.name}: no connection: that is no name of a host or a socket.") from None
        return Connection(reader, writer)


class Connection:
    """A connection that carries one request after another."""

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
            raise EndpointError(f"{name}: the request could not be sent: {reason(error)}.") from None
        while not answer.has_headers:
            await answer.read()
        return answer

    def close(self) -> None:
        """Close the connection; data in flight is dropped."""
        self.writer.close()


def _fixed_headers(host: str, api_key: str | None) -> list[str]:
    """Return the headers sent with every request."""
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
