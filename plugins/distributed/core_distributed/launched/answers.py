"""What rank 0 hands on to the other ranks of a script: the answers of its engine, in the order of the calls.

Owns: the form of these messages, and the two ends of the way. Never does: call an engine, or give an answer a meaning.
Called by: the clients of engines whose ranks a launcher has started.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec
import zmq

from core.api.errors import UNREADABLE, CoreError, EngineDeadError
from core_distributed.hosts.sockets import Sockets, joined, pieces
from core_distributed.launched.meeting import Launched

LOOK_MS: Final = 250
"""Milliseconds between two looks whether the other end still lives."""
LAST_S: Final = 1.0
"""Seconds in which the last answers are sent, or looked for once rank 0 is gone."""


class Greeting(msgspec.Struct, frozen=True):
    """The only message to rank 0. number: of the rank that reads its answers."""

    number: int


class Failure(msgspec.Struct, frozen=True):
    """An error that a call has raised. kind: name of its class. The others are fields of `RequestError`."""

    kind: str
    text: str
    param: str | None = None
    status: int = 400
    code: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """The answer to one call.

    number: of the call, from 1 on; 0: the engine's start. call: its name. digest: of its arguments.
    value: what it returned, as msgpack. failure: what it raised instead.
    """

    number: int
    call: str
    digest: bytes = b""
    value: bytes = b""
    failure: Failure | None = None


class Sender:
    """Rank 0's end. Raises CoreError when a rank does not take its answers."""

    def __init__(self, launched: Launched) -> None:
        self._others = launched.size - 1
        self._limit_s = launched.limit_s
        self._identities: dict[int, bytes] = {}
        self._sockets = Sockets(launched.arguments.key_file)
        try:
            self._socket = self._sockets.listen(zmq.ROUTER, launched.arguments.address, launched.answers)
        except BaseException:
            self._sockets.close()
            raise
        # Otherwise answers to a slow rank are dropped once its queue is full.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDTIMEO, int(self._limit_s * 1000))

    def gather(self, limit_s: float) -> None:
        """Wait until all other ranks have greeted, or for this time."""
        end = time.monotonic() + limit_s
        while len(self._identities) < self._others and (left := end - time.monotonic()) > 0:
            if not self._socket.poll(max(int(left * 1000), 1)):
                break
            identity, *frames = self._socket.recv_multipart()
            greeting = msgspec.msgpack.decode(joined(frames), type=Greeting)
            self._identities[greeting.number] = identity

    def send(self, answer: Answer) -> None:
        """Send an answer to all ranks that have greeted."""
        frames = pieces(msgspec.msgpack.encode(answer))
        for number, identity in self._identities.items():
            try:
                self._socket.send_multipart([identity, *frames])
            except zmq.Again:
                raise CoreError(f"Rank {number} has taken no answers for {self._limit_s:g} s.") from None
            except zmq.ZMQError as error:
                raise CoreError(f"Rank {number} is gone: its connection to rank 0 was lost ({error}).") from None

    def close(self) -> None:
        """Close the connection once the last answers are sent. Does nothing when called again."""
        self._sockets.close(LAST_S)


class Receiver:
    """Another rank's end. is_over: why no further answer can come, as a sentence; empty: one may."""

    def __init__(self, launched: Launched, is_over: Callable[[], str]) -> None:
        self._is_over = is_over
        self._decoder = msgspec.msgpack.Decoder(Answer)
        self._sockets = Sockets(launched.arguments.key_file)
        try:
            self._socket = self._sockets.connect(zmq.DEALER, launched.arguments.address, launched.answers)
            self._socket.setsockopt(zmq.SNDTIMEO, int(launched.limit_s * 1000))
            self._socket.send_multipart([*pieces(msgspec.msgpack.encode(Greeting(launched.number)))])
        except zmq.Again:
            self._sockets.close()
            raise CoreError(f"Rank 0 has not come to {launched.arguments.address}:{launched.answers}.") from None
        except BaseException:
            self._sockets.close()
            raise

    def next(self) -> Answer:
        """Wait for the next answer. Raises EngineDeadError when none can come any more."""
        while not self._socket.poll(LOOK_MS):
            why = self._is_over()
            if why and not self._socket.poll(int(LAST_S * 1000)):
                raise EngineDeadError(why)
        try:
            return self._decoder.decode(joined(self._socket.recv_multipart()))
        except UNREADABLE as error:
            raise EngineDeadError(f"An answer of rank 0 cannot be read: {error}.") from error

    def close(self) -> None:
        """Close the connection. Does nothing when called again."""
        self._sockets.close()
