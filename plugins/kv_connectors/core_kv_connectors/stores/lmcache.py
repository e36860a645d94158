"""LMCache's server as a store, by the protocol of its `lm://` addresses.

Owns: `LMCacheStore`, and how its messages lie on a connection. Never does: import LMCache, which pins packages: its server
runs in an environment of its own (`lmcache_server HOST PORT`). Called by: the manifest of the connector `lmcache`. Source:
what server and client of lmcache 0.5.6 send.

A request is nine numbers of 32 bits (command, length, format, type, location, shape) and a key of 150 bytes, filled up with
blanks; an answer is nine numbers (code, length, format, type, shape, location). The server does not answer a PUT, so each is
followed by a question for its key. It drops nothing by itself, and asks no caller for a key.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from core_kv_connectors.stores.store import LIMIT_S, Parts, StoreError

PUT, GET, EXIST = 1, 2, 3
FOUND, MISSING = 200, 400
BINARY: Final = 4
"""Format of an object that is no tensor to the server."""
BYTES: Final = 6
"""Type of its elements."""
REQUEST: Final = struct.Struct("<9i150s")
ANSWER: Final = struct.Struct("<9i")
LEAST_RATE: Final = 10e6
"""Bytes a second of a server that is no slower than computing."""
AT_ONCE: Final = 128
"""Questions that are sent before their answers are read: the answers fit in the buffers of any socket."""


def key_of(name: str) -> bytes:
    """Return a store's key for an object: model, world size, worker, hash (a hexadecimal number) and type."""
    return f"core-kv-1@1@0@{name}@uint8".encode().ljust(150)


class LMCacheStore:
    """One server. See `Store`. host, port: where it listens."""

    def __init__(self, host: str, port: int, limit_s: float = LIMIT_S) -> None:
        self.place = f"lm://{host}:{port}"
        self._reads = Connection(host, port, limit_s)
        self._writes = Connection(host, port, limit_s)
        self._buffer = memoryview(b"")

    def prepare(self, buffer: memoryview) -> None:
        """See `Store`. Nothing is dialled: a server may come later."""
        self._buffer = buffer

    def has(self, names: Sequence[str]) -> list[bool]:
        """See `Store`."""
        found: list[bool] = []
        for begin in range(0, len(names), AT_ONCE):
            found += self._reads.has(names[begin : begin + AT_ONCE])
        return found

    def read(self, name: str) -> int | None:
        """See `Store`."""
        return self._reads.read(name, self._buffer)

    def write(self, name: str, parts: Parts, *, replaces: bool) -> None:
        """See `Store`."""
        if replaces or not self._writes.has([name])[0]:
            self._writes.write(name, parts)

    def close(self) -> None:
        """See `Store`."""
        self._reads.end()
        self._writes.end()


class Connection:
    """A connection, dialled at its first call and again after an error. It belongs to one thread, but for `end`."""

    def __init__(self, host: str, port: int, limit_s: float) -> None:
        self._address = host, port
        self._limit_s = limit_s
        self._until = 0.0
        self._socket: socket.socket | None = None
        self._has_ended = False

    def has(self, names: Sequence[str]) -> list[bool]:
        """Whether the server has each of at most `AT_ONCE` objects."""
        with self._call():
            self._send(b"".join(_request(EXIST, name) for name in names))
            return [self._answer()[0] for _ in names]

    def read(self, name: str, buffer: memoryview) -> int | None:
        """Read an object; see `Store.read`."""
        with self._call(len(buffer)):
            self._send(_request(GET, name))
            is_found, length = self._answer()
            if not is_found:
                return None
            if length > len(buffer):
                raise StoreError(f"an object has {length} bytes, expected at most {len(buffer)}")
            self._receive(buffer[:length])
            return length

    def write(self, name: str, parts: Parts) -> None:
        """Store an object, and ask whether it is there."""
        head, page = parts
        length = len(head) + page.nbytes
        with self._call(length):
            self._send(_request(PUT, name, length) + head)
            self._send(page)
            self._send(_request(EXIST, name))
            if not self._answer()[0]:
                raise StoreError("an object that was stored is not there")

    def end(self) -> None:
        """Hang up, and dial no more."""
        self._has_ended = True
        self._hang_up()

    @contextmanager
    def _call(self, num_bytes: int = 0) -> Iterator[None]:
        """Limit the time of a call that moves so many bytes; after an error nothing that still comes is read."""
        self._until = time.monotonic() + self._limit_s + num_bytes / LEAST_RATE
        if self._socket is not None and not _is_quiet(self._socket):
            self._hang_up()
        try:
            yield
        except BaseException:
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _open(self) -> socket.socket:
        """Return the socket, with the time that is left."""
        if self._has_ended:
            raise StoreError("the connector is closed")
        left = self._until - time.monotonic()
        if left <= 0:
            raise StoreError("it does not answer in time")
        if self._socket is None:
            self._socket = socket.create_connection(self._address, left)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(left)
        return self._socket

    def _send(self, content: bytes | memoryview) -> None:
        self._open().sendall(content)

    def _answer(self) -> tuple[bool, int]:
        """Return whether there is an object, and its length."""
        content = bytearray(ANSWER.size)
        self._receive(memoryview(content))
        code, length, *_ = ANSWER.unpack(content)
        if code not in (FOUND, MISSING) or length < 0:
            raise StoreError(f"it answers with code {code} and {length} bytes, which LMCache's server never does")
        return code == FOUND, length

    def _receive(self, into: memoryview) -> None:
        while into:
            count = self._open().recv_into(into)
            if not count:
                raise StoreError("it hung up in the middle of an answer")
            into = into[count:]


def _is_quiet(connection: socket.socket) -> bool:
    """Whether nothing has come: an end or bytes before any question mean that the server is another one by now."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _request(command: int, name: str, length: int = 0) -> bytes:
    return REQUEST.pack(command, length, BINARY, BYTES, 0, length, 0, 0, 0, key_of(name))
