"""Sockets between hosts: TCP, encrypted if there is a secret.

Owns: their options, and messages in pieces. Never does: know what a message means. Called by: the wires of ranks, the first
node and the others.

A message travels as frames of at most `PIECE_BYTES`: the library buffers no more than one frame of a peer that has not
proved anything yet.
"""

from __future__ import annotations

import socket as system
import time
from collections.abc import Sequence
from typing import Any, Final

import zmq
from zmq.auth.thread import ThreadAuthenticator

from core.api.errors import UserError
from core_supervision.link.secured import protect, read_secret, url

PIECE_BYTES: Final = 1 << 16
SEAL_BYTES: Final = 1 << 10
"""Upper bound on the bytes that encryption and handshake add to a frame."""
HANDSHAKE_MS: Final = 10_000
RETRY_MS: Final = 100
MOST_WAITING: Final = 256
"""Messages that a socket keeps for a slow peer. Steps in flight need far fewer."""
BIND_S: Final = 2.0
"""Seconds that the previous engine's process has to give up its port."""


class Sockets:
    """Makes the sockets of one process and closes them. key_file: the secret; None: nothing is protected."""

    def __init__(self, key_file: str | None) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._secret = None if key_file is None else read_secret(key_file)
        self._authenticator: ThreadAuthenticator | None = None
        self._open: list[zmq.Socket[bytes]] = []

    def listen(self, kind: int, address: str, port: int) -> zmq.Socket[bytes]:
        """Return a socket that listens at an address of this host. Raises UserError."""
        socket = self._make(kind, listens=True, address=address)
        deadline = time.monotonic() + BIND_S
        while True:
            try:
                numeric: Any = system.getaddrinfo(address, None, type=system.SOCK_STREAM)[0][4]
                socket.bind(url(str(numeric[0]), port))
                return socket
            except (zmq.ZMQError, OSError) as error:
                if error.errno == zmq.EADDRINUSE and time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                why = error.strerror or error
            raise UserError(
                f"{address}:{port} cannot be used ({why}): ranks of several hosts need --master-port and the ports after it, "
                "free, at --master-addr on node 0 and at the address of the route to it on other nodes."
            )

    def connect(self, kind: int, address: str, port: int, silence_s: float = 0.0) -> zmq.Socket[bytes]:
        """Return a socket that connects to another host, as often as needed.

        silence_s: a peer whose system does not answer for this time counts as gone; 0: it never does.
        """
        socket = self._make(kind, listens=False, address=address)
        if silence_s:
            socket.setsockopt(zmq.HEARTBEAT_IVL, max(int(silence_s * 250), 1))
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, max(int(silence_s * 750), 1))
        socket.connect(url(address, port))
        return socket

    def close(self, linger_s: float = 0.0) -> None:
        """Close all sockets. linger_s: seconds that the last messages have to be sent."""
        for socket in self._open:
            socket.close(linger=int(linger_s * 1000))
        self._open.clear()
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        self._context.term()

    def _make(self, kind: int, *, listens: bool, address: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        self._open.append(socket)
        options = {
            zmq.SNDHWM: MOST_WAITING,
            zmq.RCVHWM: MOST_WAITING,
            zmq.MAXMSGSIZE: PIECE_BYTES + SEAL_BYTES,
            zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
            zmq.RECONNECT_IVL: RETRY_MS,
            zmq.IMMEDIATE: 1,
            zmq.IPV6: int(":" in address),
        }
        for option, value in options.items():
            socket.setsockopt(option, value)
        if self._secret is not None:
            key = protect(socket, self._secret, listens=listens)
            if listens:
                self._authenticate(key)
        return socket

    def _authenticate(self, key: Any) -> None:
        if self._authenticator is None:
            self._authenticator = ThreadAuthenticator(self._context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback("*", credentials_provider=key)


def pieces(payload: bytes | memoryview) -> Sequence[bytes | memoryview]:
    """Return a payload as frames."""
    return [payload[start : start + PIECE_BYTES] for start in range(0, len(payload), PIECE_BYTES)]


def joined(frames: Sequence[bytes]) -> bytes:
    """Return the payload of frames."""
    return frames[0] if len(frames) == 1 else b"".join(frames)


def own_address(address: str, port: int) -> str:
    """Return the address of this host on the route to another one. Raises UserError."""
    try:
        family, _, _, _, target = system.getaddrinfo(address, port, type=system.SOCK_DGRAM)[0]
        with system.socket(family, system.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(f"--master-addr {address}: no route to it ({error.strerror or error}).") from None
