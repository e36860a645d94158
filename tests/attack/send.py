"""Sends rows over a bare socket, since no client library would.

Owns: the bytes of the request, time limits, reading the answer. Never does: judge it.
"""

import contextlib
import http.client
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.attack.row import CLOSED, KEY, UNANSWERED, Answer, Row

PIECE = 256 * 1024
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Target:
    """A server on this machine. key: the right one."""

    host: str
    port: int
    key: str = KEY

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK:
            raise ValueError(f"The host is {self.host!r}; only servers on this machine are attacked: 127.0.0.1.")

    def connect(self, limit_s: float = 10.0) -> socket.socket:
        """A new connection, whose calls end after `limit_s` seconds."""
        return socket.create_connection((self.host, self.port), timeout=limit_s)


def send(target: Target, row: Row, limit_s: float = 30.0) -> Answer:
    """Send `row` and read the whole answer; never raises, never takes much longer than `limit_s` seconds."""
    body = row.make_body()
    begin = time.monotonic()
    try:
        with target.connect(limit_s) as connection:
            note = _send_all(connection, head(target, row, body), body, begin + limit_s)
            return _read(connection, row.method, begin, limit_s, note)
    except OSError as error:
        return Answer(_lost(error), {}, b"", time.monotonic() - begin, f"{type(error).__name__}: {error}")


def head(target: Target, row: Row, body: bytes | Iterator[bytes]) -> bytes:
    """The request line and headers."""
    given = {name.lower() for name, _ in row.headers}
    own: list[tuple[str, bytes]] = [("Host", f"{target.host}:{target.port}".encode()), ("Connection", b"close")]
    if row.keyed:
        own.append(("Authorization", f"Bearer {target.key}".encode()))
    if row.method != "GET":
        own.append(("Content-Type", b"application/json"))
    if isinstance(body, bytes):
        own.append(("Content-Length", str(len(body)).encode()))
    else:
        own.append(("Transfer-Encoding", b"chunked"))
    lines = [f"{row.method} {row.target} HTTP/1.1".encode()]
    lines += [name.encode() + b": " + value for name, value in own if name.lower() not in given]
    lines += [name.encode() + b": " + value for name, value in row.headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _pieces(start: bytes, body: bytes | Iterator[bytes]) -> Iterator[bytes | memoryview]:
    if isinstance(body, bytes):
        whole = memoryview(start + body)
        yield from (whole[at : at + PIECE] for at in range(0, len(whole), PIECE))
        return
    yield start
    for part in body:
        yield b"%x\r\n%b\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


def _send_all(connection: socket.socket, start: bytes, body: bytes | Iterator[bytes], deadline: float) -> str:
    """Send until the server answers or hangs up; returns what went wrong."""
    try:
        for piece in _pieces(start, body):
            if select.select([connection], [], [], 0)[0]:
                return "answered before the end of the request"
            if time.monotonic() > deadline:
                return "took too long to read the request"
            connection.sendall(piece)
    except OSError as error:
        return f"{type(error).__name__} while sending"
    return ""


def _read(connection: socket.socket, method: str, begin: float, limit_s: float, note: str) -> Answer:
    status, headers, body = CLOSED, {}, b""
    try:
        connection.settimeout(max(0.1, begin + limit_s - time.monotonic()))
        response = http.client.HTTPResponse(connection, method=method)
        response.begin()
        status, headers = response.status, {name.lower(): value for name, value in response.getheaders()}
        with contextlib.closing(response):
            while time.monotonic() < begin + limit_s and (piece := response.read1(PIECE)):
                body += piece
    except (OSError, http.client.HTTPException, ValueError) as error:
        # A good answer that breaks off is none; a refusal may lose its end to the rest of the request that nobody reads.
        status = _lost(error) if status < 400 else status
        note = f"{note}; {type(error).__name__}: {error}" if note else f"{type(error).__name__}: {error}"
    return Answer(status, headers, body, time.monotonic() - begin, note)


def _lost(error: Exception) -> int:
    return UNANSWERED if isinstance(error, TimeoutError) else CLOSED
