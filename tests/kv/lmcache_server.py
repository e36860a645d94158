"""A server that speaks LMCache's protocol as its own does, and on request worse: a stand-in, written from what that sends."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

REQUEST: Final = struct.Struct("<9i150s")
ANSWER: Final = struct.Struct("<9i")
PUT, GET, EXIST = 1, 2, 3


class LMCacheServer:
    """Listens at a port of 127.0.0.1. objects: by key. answer: changes what is sent for a GET; None: it says nothing more."""

    def __init__(self, port: int = 0) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.num_asked = 0
        self.answer: Callable[[bytes], bytes | None] = lambda content: content
        self.drops_puts = False
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._has_ended = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"lm://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._has_ended.set()
        for one in (self._socket, *self._connections):
            with suppress(OSError):  # its other end has hung up
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while request := _received(connection, REQUEST.size):
                command, length, kind, element, _, *_, key = REQUEST.unpack(request)
                assert (kind, element) == (4, 6) and len(key.decode().strip().split("@")) == 5
                if command == PUT:
                    content = _received(connection, length)
                    if not self.drops_puts:
                        self.objects[key] = content
                elif command == EXIST:
                    self.num_asked += 1
                    connection.sendall(ANSWER.pack(200 if key in self.objects else 400, *(0,) * 8))
                elif command == GET:
                    self._get(connection, self.objects.get(key))
        except OSError:
            pass  # the client has hung up

    def _get(self, connection: socket.socket, content: bytes | None) -> None:
        if content is None:
            connection.sendall(ANSWER.pack(400, *(0,) * 8))
            return
        changed = self.answer(content)
        if changed is None:
            self._has_ended.wait()
            return
        connection.sendall(ANSWER.pack(200, len(changed), 4, 6, len(changed), 0, 0, 0, 0) + changed)


def _received(connection: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length:
        part = connection.recv(length - len(content))
        if not part:
            return b""
        content += part
    return content
