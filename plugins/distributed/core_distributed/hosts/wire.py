"""The way of bytes between hosts for one group of ranks.

Owns: `Wire`, one host's end. Never does: know tensors, or the ranks of a host. Called by: the first rank of each host in a
group.

The first host of a group is its hub, the only one that listens: it passes on what concerns all. Messages carry the command
and the number of the operation, so that ends which gave a command up at different places agree again.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

import zmq

from core_distributed.hosts.sockets import joined, pieces
from core_platforms.cpu.ranks import GAVE_UP

HEADER: Final = struct.Struct("<8sBBQQ")
SLICE_S: Final = 0.01
"""Seconds between two looks at whether another rank of this host gave the command up."""
ENDED: Final = "the ranks have ended"

Bytes = bytes | memoryview


class Kind(IntEnum):
    """What a message is."""

    PART = 1  # of an operation, for the receiver
    PART_OF_ALL = 2  # the same, for every host
    STREAM = 3  # bytes of the stream
    ABORT = 4  # the sender gave the command up


class Wire:
    """One host's end. place: of this host in the group; 0 is the hub.

    session: number of the engine. peers: sockets by place; other hosts than the hub have that of the hub alone.
    size: number of hosts. is_given_up: whether another rank of this host gave a command up; None: there is no other.

    late: place of the host that the latest TimeoutError waited for; negative: there was none.
    limit_s: how long to wait for a silent host; 0: for ever.
    """

    def __init__(
        self,
        session: bytes,
        place: int,
        size: int,
        peers: Mapping[int, zmq.Socket[bytes]],
        is_given_up: Callable[[int], bool] | None = None,
    ) -> None:
        self.place = place
        self.size = size
        self.late = -1
        self.limit_s = 0.0
        self._session = session
        self._peers = peers
        self._is_given_up = is_given_up
        self._command = self._operation = self._aborted = self._sent_abort = 0
        self._parts: dict[tuple[int, int, int], bytes] = {}
        self._stream = bytearray()
        self._ended = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._bell, select.POLLIN)
        for socket in peers.values():
            self._poller.register(socket, zmq.POLLIN)

    def begin(self, command: int) -> None:
        """Begin the command with this number; numbers rise."""
        self._command, self._operation = command, 0
        self._parts = {key: data for key, data in self._parts.items() if key[0] >= command}

    def exchange(self, data: Bytes) -> list[bytes]:
        """Return the bytes of all hosts in the order of their places."""
        self._start(Kind.PART_OF_ALL, data)
        return [bytes(data) if place == self.place else self._part(place) for place in range(self.size)]

    def gather(self, data: Bytes) -> list[bytes] | None:
        """Return the bytes of all hosts on the hub, None elsewhere."""
        if self.place:
            self._start(Kind.PART, data)
            return None
        self._start(None, b"")
        return [bytes(data), *(self._part(place) for place in range(1, self.size))]

    def broadcast(self, data: Bytes, root: int) -> bytes:
        """Return the bytes of the host at a place."""
        self._start(Kind.PART_OF_ALL if root == self.place else None, data)
        return bytes(data) if root == self.place else self._part(root)

    def write(self, data: Bytes) -> None:
        """Send bytes to the streams of all other hosts; only the hub does."""
        for place in self._peers:
            self._send(place, Kind.STREAM, 0, self.place, data, limited=True)

    def read(self, count: int, *, limited: bool = False) -> bytes:
        """Read bytes of the stream. limited: within the limit and the present command, else as long as it takes."""
        self._await(lambda: len(self._stream) >= count, 0, limited=limited)
        data = bytes(self._stream[:count])
        del self._stream[:count]
        return data

    def abort(self) -> None:
        """Give up the present command on all hosts."""
        if self._sent_abort < self._command:
            self._sent_abort = self._aborted = self._command
            for place in self._peers:
                self._send(place, Kind.ABORT, 0, self.place, b"", limited=False)

    def end(self) -> None:
        """Make every wait of this end stop, now and later; may be called in any thread."""
        self._ended = True
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Release the descriptor; the sockets belong to their maker."""
        self.end()
        os.close(self._bell)

    def _start(self, kind: Kind | None, data: Bytes) -> None:
        """Begin an operation; kind: of this host's part of it, None: it has none."""
        self._take_in()
        self._check(limited=True)
        self._operation += 1
        if kind is not None:
            for place in self._peers:
                self._send(place, kind, self._operation, self.place, data, limited=True)

    def _part(self, place: int) -> bytes:
        key = (self._command, self._operation, place)
        self._await(lambda: key in self._parts, place, limited=True)
        return self._parts.pop(key)

    def _send(self, to: int, kind: Kind, operation: int, origin: int, data: Bytes, *, limited: bool) -> None:
        header = HEADER.pack(self._session, kind, origin, self._command, operation)
        self._pass_on(to, [header, *pieces(data)], limited=limited)

    def _pass_on(self, to: int, frames: list[Bytes], *, limited: bool) -> None:
        socket = self._peers[to]

        def sent() -> bool:
            try:
                socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                return False
            return True

        if not sent():
            self._await(sent, to, limited=limited, slice_s=SLICE_S)

    def _await(self, is_done: Callable[[], bool], late: int, *, limited: bool, slice_s: float | None = None) -> None:
        """Wait until something is so. late: place of the host that makes it so. slice_s: seconds between two looks."""
        if limited and self._is_given_up is not None:
            slice_s = SLICE_S
        begin = time.monotonic()
        while True:
            self._take_in()
            if is_done():
                return
            self._check(limited=limited)
            left = None
            if limited and self.limit_s:
                left = begin + self.limit_s - time.monotonic()
                if left <= 0:
                    self.late = late
                    raise TimeoutError("another host is silent")
            wait = min(each for each in (left, slice_s, 3600.0) if each is not None)
            self._poller.poll(int(wait * 1000) + 1)

    def _check(self, *, limited: bool) -> None:
        if self._ended:
            raise RuntimeError(ENDED)
        if not limited:
            return
        if self._is_given_up is not None and self._is_given_up(self._command):
            self.abort()
        if self._aborted >= self._command:
            raise RuntimeError(GAVE_UP)

    def _take_in(self) -> None:
        """Receive what is there."""
        for place, socket in self._peers.items():
            while not self._ended:
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self._receive(place, frames)

    def _receive(self, place: int, frames: list[bytes]) -> None:
        if len(frames[0]) != HEADER.size:
            return
        session, kind, origin, command, operation = HEADER.unpack(frames[0])
        if session != self._session:
            return
        if self.place == 0 and kind in (Kind.PART_OF_ALL, Kind.ABORT):
            for other in self._peers:
                if other != place:
                    self._pass_on(other, list(frames), limited=False)
        if kind == Kind.STREAM:
            self._stream += joined(frames[1:])
        elif kind == Kind.ABORT:
            self._aborted = max(self._aborted, command)
        elif command >= self._command:
            self._parts[command, operation, origin] = joined(frames[1:])
