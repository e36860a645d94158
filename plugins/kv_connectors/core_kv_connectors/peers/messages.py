"""What engines say to each other about KV pages, and how it lies on a connection.

Owns: the messages, their limits, and reading and writing them. Never does: open a connection or decide anything. Called by:
both ends, `handshake`.

A message is its length (uint32, little-endian) and msgpack of one of the types below, which a tag tells apart. A `Found` is
followed by the bytes of its page, unless a transport fetches them.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Annotated, Final, TypeVar

import msgspec

from core.api.errors import UNREADABLE
from core_kv_connectors.peers.pace import PIECE_BYTES, Pace
from core_kv_connectors.peers.page_shape import UNDIVIDED, PageShape

MAGIC = "core-kv-tcp-3"
MOST_BYTES = 1 << 20
"""Largest message; a length beyond it ends the connection before anything is allocated."""
MOST_NAMES = 1 << 13
"""Most names of pages in one message: 24 bytes each, with what msgpack adds."""
SMALL_BYTES = 1 << 12
"""Largest message of a handshake, from an end that has proved nothing yet."""
MOST_PLACE = 1 << 16
"""Most bytes that describe the memory of an end; NIXL's description of one with many networks has some thousand."""

READ_AHEAD: Final = 1 << 13
"""Bytes that a `Reader` asks the system for at once: some hundred questions for pages."""
LONGEST_LEASE_S = 1e6
"""Most seconds of a lease; a wait for more raises an error of the system."""


class PeerError(Exception):
    """Raised when the other end does not do what was agreed; the message says what."""


class Hello(msgspec.Struct, tag=1, array_like=True, forbid_unknown_fields=True):
    """First message of each end.

    nonce: 32 random bytes. purpose: of the connection, "names", "pages", "lease" or "check"; empty from the listener.
    """

    magic: str
    nonce: bytes
    purpose: str = ""


class Terms(msgspec.Struct, tag=2, array_like=True, forbid_unknown_fields=True):
    """Second message of each end.

    proof: HMAC of both nonces and the terms. fingerprint: of weights, numerics and layout. page_bytes: of a page. problem: why
    the listener refuses; empty: it agrees. transport: how the bytes of pages come. shape: how pages are divided among ranks.
    """

    proof: bytes
    fingerprint: str
    page_bytes: int
    problem: str = ""
    transport: str = "tcp"
    shape: PageShape = UNDIVIDED


class Names(msgspec.Struct, tag=3, array_like=True, forbid_unknown_fields=True):
    """Names of pages that the listener holds from now on, and of those that it no longer holds. is_new: they replace all."""

    added: list[bytes] = []
    removed: list[bytes] = []
    is_new: bool = False


class Get(msgspec.Struct, tag=4, array_like=True, forbid_unknown_fields=True):
    """A question for a page. Answers come in the order of the questions."""

    name: bytes


class Found(msgspec.Struct, tag=5, array_like=True, forbid_unknown_fields=True):
    """The answer: the header of a page file (see `page_file`), whose page follows. header: empty when the page is gone.

    address: in the memory of who answers, where a transport fetches the page from there; nothing follows then.
    """

    name: bytes
    header: bytes = b""
    address: Annotated[int, msgspec.Meta(ge=0)] = 0


class Claim(msgspec.Struct, tag=6, array_like=True, forbid_unknown_fields=True):
    """A claim on the lease that a ticket names.

    tenant: of the request, as the claimant's own server knows it. engine_id: of the producer, as the request says; empty: none.
    """

    ticket: str
    tenant: str = ""
    engine_id: str = ""


class Granted(msgspec.Struct, tag=7, array_like=True, forbid_unknown_fields=True):
    """The answer to a claim. Its names follow, in messages of `Names`.

    count: of names. lease_s: seconds after which the lease ends without a further word. problem: why it is refused; empty: it
    is granted. place: what the transport must know of this end's memory.
    """

    count: Annotated[int, msgspec.Meta(ge=0, le=1 << 22)] = 0
    lease_s: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_LEASE_S)] = 0.0
    problem: str = ""
    place: Annotated[bytes, msgspec.Meta(max_length=MOST_PLACE)] = b""


class Ask(msgspec.Struct, tag=8, array_like=True, forbid_unknown_fields=True):
    """What a claimant wants next; each renews the lease.

    name: of a page to send; empty: nothing but the renewal. ends: whether the lease is released. received: pages received in
    all, with the release.
    """

    name: bytes = b""
    ends: bool = False
    received: Annotated[int, msgspec.Meta(ge=0)] = 0


class Released(msgspec.Struct, tag=9, array_like=True, forbid_unknown_fields=True):
    """The answer to a release. sent: pages sent in all."""

    sent: Annotated[int, msgspec.Meta(ge=0)] = 0


CLOSED: Final = "it has closed the connection"
TIMED_OUT: Final = "timed out"  # as Python's own timeouts say
Kind = TypeVar("Kind", bound=msgspec.Struct)


def send(
    connection: socket.socket, message: msgspec.Struct, page: memoryview | None = None, pace: Pace | None = None
) -> None:
    """Write a message, and the page behind it as it lies in memory. pace: of pages; None: as fast as they are taken.

    Raises OSError.
    """
    if page is None:
        connection.sendall(framed(message))
        return
    pieces = _pieces(page, pace)
    # In one call with the page: alone, the message would wake the other end twice for each page.
    _send_both(connection, framed(message), next(pieces, page[:0]))
    for piece in pieces:
        connection.sendall(piece)


def framed(*messages: msgspec.Struct) -> bytes:
    """Return messages as they lie on a connection."""
    bodies = [msgspec.msgpack.encode(message) for message in messages]
    return b"".join(len(body).to_bytes(4, "little") + body for body in bodies)


def limit_waits(connection: socket.socket, *, receiving_s: float, sending_s: float) -> None:
    """Let each read and each write wait for so many seconds at most, above 0, before it raises an error of the system.

    The system keeps the time, not Python: a page is then read or written in one call, for which this thread gives up the
    interpreter once. With a timeout of Python's it does so twice for whatever part of the page has arrived, and may wait for
    5 ms each time while the engine plans.
    """
    connection.settimeout(None)
    for name, seconds in ((socket.SO_RCVTIMEO, receiving_s), (socket.SO_SNDTIMEO, sending_s)):
        whole, rest = divmod(max(seconds, 1e-3), 1)
        connection.setsockopt(socket.SOL_SOCKET, name, struct.pack("ll", int(whole), int(rest * 1e6)))


class Reader:
    """Reads messages from an end that sends no pages, several with one call where they have come together.

    connection: on which nothing else is read from now on. most: bytes of a message.
    """

    def __init__(self, connection: socket.socket, most: int) -> None:
        self._connection = connection
        self._most = most
        self._read = bytearray()

    def receive(self, kind: type[Kind]) -> Kind:
        """Read a message, as `receive` does."""
        length = _checked(self._take(4), self._most)
        return _decoded(self._take(length), kind)

    def _take(self, count: int) -> bytearray:
        while len(self._read) < count:
            try:
                more = self._connection.recv(READ_AHEAD)
            except BlockingIOError as error:
                raise TimeoutError(TIMED_OUT) from error
            if not more:
                raise PeerError(CLOSED)
            self._read += more
        taken = self._read[:count]
        del self._read[:count]
        return taken


def receive(connection: socket.socket, kind: type[Kind], most: int = MOST_BYTES) -> Kind:
    """Read a message of one type. Raises PeerError for any other, OSError."""
    length = _checked(receive_exactly(connection, 4), most)
    return _decoded(receive_exactly(connection, length), kind)


def _checked(encoded: bytearray, most: int) -> int:
    """Return the length of a message. Raises PeerError for one that is none, or larger than `most`."""
    length = int.from_bytes(encoded, "little")
    if not 0 < length <= most:
        raise PeerError(f"it sends a message of {length} bytes; expected at most {most}")
    return length


def _decoded(body: bytearray, kind: type[Kind]) -> Kind:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except UNREADABLE as error:
        raise PeerError(f"its message is no {kind.__name__} ({error})") from error


def receive_exactly(connection: socket.socket, count: int) -> bytearray:
    """Read `count` bytes. Raises PeerError when the other end has closed, OSError."""
    data = bytearray(count)
    receive_into(connection, memoryview(data))
    return data


def receive_into(connection: socket.socket, target: memoryview, pace: Pace | None = None) -> None:
    """Fill memory from a connection. pace: of pages; None: as fast as they come.

    Raises PeerError when the other end has closed, OSError.
    """
    for piece in _pieces(target, pace):
        left = piece
        while left:
            # All of it in one call, where the system keeps the time (`limit_waits`).
            try:
                count = connection.recv_into(left, 0, socket.MSG_WAITALL)
            except BlockingIOError as error:
                raise TimeoutError(TIMED_OUT) from error
            if not count:
                raise PeerError(CLOSED)
            left = left[count:]


def _send_both(connection: socket.socket, head: bytes, page: memoryview) -> None:
    """Write two pieces of memory, neither of which is copied, with one call if the system takes all."""
    page = page.cast("B")
    count = connection.sendmsg([head, page])
    if count < len(head):
        connection.sendall(head[count:])
    rest = page[max(count - len(head), 0) :]
    if rest:
        connection.sendall(rest)


def _pieces(page: memoryview, pace: Pace | None) -> Iterator[memoryview]:
    """Yield a page piece by piece, each as soon as it may be moved; as a whole without a limit."""
    if pace is None:
        yield page
        return
    page = page.cast("B")
    for start in range(0, len(page), PIECE_BYTES):
        piece = page[start : start + PIECE_BYTES]
        pace.take(len(piece))
        yield piece
