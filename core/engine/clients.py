"""Clients of an engine process.

Owns: the connected clients, the unfinished requests of each, and the division of a step's outputs among them.
Never does: schedule, or read the contents of a request. Called by: the engine process and its loop.

A client is identified by the identity of its socket and by a number assigned here. Two clients may use the same request id,
so inside the engine each request is called `Client.name`. The client's ledger restores the id of outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import zmq

from core.api.messages import CLIENT_SHIFT, NO_TOKENS, EngineOutput, EngineOutputs, TokenColumns
from core.api.step_plan import SequenceKey
from core.engine import wire
from core.engine.hello import GREETING, greeting_problem
from core.engine.utilities import OWNER

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Client:
    """One connected client, owned by `Clients`.

    identity: identity of its socket.
    number:   unique for one engine; the upper part of the client's handles.
    live:     choices that have not ended, by the engine's name of their request.
    """

    identity: bytes
    number: int
    live: dict[str, set[int]] = field(default_factory=dict)

    def name(self, request_id: str) -> str:
        """Return the engine's name for a request of this client, which no other client's request has."""
        return f"{self.number}:{request_id}"

    def owns(self, handle: int) -> bool:
        """Whether the sequence with this handle belongs to this client."""
        return handle >> CLIENT_SHIFT == self.number

    def end(self, key: SequenceKey) -> None:
        """Remove a choice that has ended; unknown ones are ignored."""
        name, choice = key
        choices = self.live.get(name)
        if choices is not None:
            choices.discard(choice)
            if not choices:
                del self.live[name]


class Clients:
    """All clients that have greeted and not left, owned by the engine process. socket: a ROUTER.

    A client that disappears sends nothing more; it is noticed with the next message to it: see `send`.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        # Otherwise messages to a client that is gone are dropped silently, and its requests run to their end.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._by_identity: dict[bytes, Client] = {}
        self._by_number: dict[int, Client] = {}
        self._num_guests = 0
        self._is_owned = False

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._by_number.values()))

    def receive(self) -> tuple[Client, list[bytes]] | None:
        """Wait for the next message; returns its sender and its frames, without any for a greeting.

        Returns None when the sender has to be turned away. The first greeting with a second frame, the only one that returns
        frames, is that of the owner: an engine has one owner, and never another.
        """
        identity, *frames = self.socket.recv_multipart()
        client = self._by_identity.get(identity)
        if client is not None:
            return client, frames
        # Before the check, so that a client of another version can read which one this engine speaks.
        if not self._post(identity, GREETING):
            return None  # a late message of a client that is gone already
        problem = greeting_problem(frames[0], "client")
        if problem:
            logger.error("A client was turned away. %s", problem)
            return None
        is_owner = len(frames) > 1 and not self._is_owned
        return self._enter(identity, is_owner=is_owner), frames[1:] if is_owner else []

    def find(self, number: int) -> Client | None:
        """Return the client with this number, or None when it is not connected."""
        return self._by_number.get(number)

    def remove(self, client: Client) -> None:
        """Remove a client; its number is not used again."""
        self._by_identity.pop(client.identity, None)
        self._by_number.pop(client.number, None)

    def send(self, client: Client, message: msgspec.Struct) -> bool:
        """Send a message; False when the client is gone without having left."""
        return self._post(client.identity, wire.encode(message))

    def share(self, step: EngineOutputs) -> list[tuple[Client, EngineOutputs]]:
        """Divide a step's message among the clients: each gets its own outputs, and the state of the engine."""
        for output in step.outputs:
            if output.finish_reason is not None:
                self._end(output)
        clients = list(self._by_number.values())
        # The usual case, which needs no division. Outputs of clients that are gone are ignored by the client's ledger.
        if len(clients) == 1:
            return [(clients[0], step)]
        records = self._records(step.outputs)
        columns = self._columns(step.tokens)
        shares: list[tuple[Client, EngineOutputs]] = []
        for client in clients:
            outputs = records.get(client.number, [])
            tokens = columns.get(client.number, NO_TOKENS)
            begun = [each for each in step.begun if each.handle >> CLIENT_SHIFT == client.number]
            share = EngineOutputs(step.epoch, outputs, step.stats, tokens, begun)
            shares.append((client, share))
        return shares

    def _post(self, identity: bytes, payload: bytes) -> bool:
        try:
            self.socket.send_multipart([identity, payload])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _enter(self, identity: bytes, *, is_owner: bool) -> Client:
        if is_owner:
            # For good: after the owner has left no other client may take its place.
            self._is_owned = True
        else:
            self._num_guests += 1
        number = OWNER if is_owner else self._num_guests
        client = Client(identity, number)
        self._by_identity[identity] = client
        self._by_number[number] = client
        return client

    def _end(self, output: EngineOutput) -> None:
        client = self._by_number.get(output.handle >> CLIENT_SHIFT)
        if client is not None:
            client.end((output.request_id, output.choice))

    def _records(self, outputs: Sequence[EngineOutput]) -> dict[int, list[EngineOutput]]:
        """Group outputs by the number of their client."""
        records: dict[int, list[EngineOutput]] = {}
        for output in outputs:
            records.setdefault(output.handle >> CLIENT_SHIFT, []).append(output)
        return records

    def _columns(self, tokens: TokenColumns) -> dict[int, TokenColumns]:
        """Group rows by the number of their client."""
        handles = np.frombuffer(tokens.handles, np.int64)
        starts = np.frombuffer(tokens.starts, np.int32)
        token_ids = np.frombuffer(tokens.token_ids, np.int32)
        numbers = handles >> CLIENT_SHIFT
        columns: dict[int, TokenColumns] = {}
        for number in set(numbers.tolist()):
            rows = numbers == number
            parts = [column[rows].tobytes() for column in (handles, starts, token_ids)]
            columns[number] = TokenColumns(*parts)
        return columns
