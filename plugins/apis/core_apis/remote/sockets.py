"""The sockets between an API server and its engine's command: TCP, encrypted if there is a secret.

Owns: how they are made, their limits, and the library's reports about connections. Never does: know messages. Called
by: both ends.

The API server asks its authenticator about every connection before it reads a message of it.

A payload travels as frames of at most `PIECE_BYTES`: the library buffers no more than one frame of a peer that has not
proved anything yet.
"""

from __future__ import annotations

import asyncio
import socket as system
from collections.abc import Mapping
from typing import Any, Final, cast

import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator
from zmq.utils.monitor import parse_monitor_message

from core.api.errors import UserError
from core_config.served.server_config import RemoteSettings
from core_supervision.link.secured import protect, read_secret, url

MOST_BYTES: Final = 1 << 30
"""Maximum size of a message in bytes."""
PIECE_BYTES: Final = 1 << 16
SEAL_BYTES: Final = 1 << 10
"""Upper bound on the bytes that encryption and handshake add to a frame."""
HANDSHAKE_MS: Final = 10_000
"""Milliseconds within which the other end must prove that it has the secret."""
RETRY_MS: Final = 100
RETRY_MOST_MS: Final = 2000
HEARTBEAT_MS: Final = 2000
HEARTBEAT_TIMEOUT_MS: Final = 10_000
"""Milliseconds after which a machine that does not answer counts as gone."""
LAST_WORDS_MS: Final = 500
LAST_WORDS_S: Final = 0.05

_FAILURES: Final[Mapping[int, str]] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the other end does not know our key (--engine-key-file)",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the other end speaks otherwise: it has another --engine-key-file, or none, or is "
    "no end of this engine",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the other end hung up: it has another --engine-key-file, or has just ended",
}
_LOST: Final = int(zmq.EVENT_DISCONNECTED)
_WATCHED: Final = _LOST | sum(_FAILURES)


class Link:
    """One socket and its monitor, in a context of its own. Use it from one event loop."""

    def __init__(self, settings: RemoteSettings, *, listens: bool) -> None:
        self.address = ""
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self.socket: zmq.asyncio.Socket = self._context.socket(zmq.ROUTER if listens else zmq.DEALER)
        self._authenticator: AsyncioAuthenticator | None = None
        self._configure(settings)
        if settings.key_file is not None:
            self._protect(read_secret(settings.key_file), listens=listens)
        self._monitor: zmq.asyncio.Socket = self.socket.get_monitor_socket(_WATCHED)
        try:
            self._attach(settings, listens=listens)
        except BaseException:
            self.close()
            raise

    async def trouble(self) -> str | None:
        """Wait for the next connection event, and return what it means.

        None: a connection was lost; else a clause that says why one was not made.

        The last messages of the other end can be read before its loss is reported.
        """
        events = [await self._event()]
        # Read all events at once: a crowd of unknown peers is one trouble, and unread reports block the library.
        while await self._monitor.poll(0):
            events.append(await self._event())
        if _LOST in events:
            await asyncio.sleep(LAST_WORDS_S)
            return None
        return _FAILURES[events[-1]]

    def send(self, kind: bytes, payload: bytes, to: bytes | None = None) -> asyncio.Future[object]:
        """Send a message.

        Messages leave in the order of the calls; awaiting one is optional. to: the receiver, if this end listens.
        """
        pieces = [payload[start : start + PIECE_BYTES] for start in range(0, len(payload), PIECE_BYTES)]
        whom = [] if to is None else [to]
        return cast("asyncio.Future[object]", self.socket.send_multipart([*whom, kind, *(pieces or [b""])]))

    async def receive(self) -> tuple[bytes, bytes]:
        """Return kind and payload of the next message, if this end connects."""
        kind, *pieces = await self.socket.recv_multipart()
        return kind, _joined(pieces)

    async def receive_from(self) -> tuple[bytes, bytes, bytes]:
        """Return sender, kind and payload of the next message, if this end listens."""
        while True:
            identity, *frames = await self.socket.recv_multipart()
            if frames:
                return identity, frames[0], _joined(frames[1:])

    def close(self, linger_ms: int = 0) -> None:
        """Release everything; tasks that wait on this link must have been cancelled.

        linger_ms: milliseconds that the last messages have to be sent, for which this call waits.
        """
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        self.socket.close(linger=linger_ms)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()

    async def _event(self) -> int:
        return int(parse_monitor_message(await self._monitor.recv_multipart())["event"])

    def _configure(self, settings: RemoteSettings) -> None:
        options = {
            zmq.SNDHWM: 0,
            zmq.RCVHWM: 0,
            zmq.MAXMSGSIZE: PIECE_BYTES + SEAL_BYTES,
            zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
            zmq.RECONNECT_IVL: RETRY_MS,
            zmq.RECONNECT_IVL_MAX: RETRY_MOST_MS,
            zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
            zmq.IPV6: int(":" in settings.address),
        }
        for option, value in options.items():
            self.socket.setsockopt(option, value)

    def _protect(self, secret: bytes, *, listens: bool) -> None:
        key = protect(self.socket, secret, listens=listens)
        if not listens:
            return
        self._authenticator = AsyncioAuthenticator(self._context)
        self._authenticator.configure_curve_callback("*", credentials_provider=key)
        self._authenticator.start()

    def _attach(self, settings: RemoteSettings, *, listens: bool) -> None:
        shown = f"{settings.address}:{settings.port}"
        try:
            if listens:
                self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
                self.address = url(_numeric(settings.address), settings.port)
                self.socket.bind(self.address)
            else:
                self.address = url(settings.address, settings.port)
                self.socket.connect(self.address)
        except (zmq.ZMQError, OSError) as error:
            raise UserError(
                f"--data-parallel-address {settings.address}: {shown} cannot be used ({error.strerror or error}); the API "
                "server needs a free port (--data-parallel-rpc-port) at an address of its machine."
            ) from None


def _joined(pieces: list[bytes]) -> bytes:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _numeric(address: str) -> str:
    """Resolve a name to the numeric address to listen at. Raises OSError."""
    found: Any = system.getaddrinfo(address, None, type=system.SOCK_STREAM)[0][4]
    return str(found[0])
