"""The loop of an engine process: messages in, steps, messages out.

Owns: `EngineLoop`: the order of messages and steps, and what each message does.
Never does: schedule, compute, build an engine, or decide when to end: its owner says so. Called by: the engine process.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import cast

import msgspec
import zmq

from core.api.errors import UNREADABLE, CoreError, EngineDeadError, RequestError, UtilityError
from core.api.messages import (
    AbortChoices,
    AbortRequests,
    AddRequest,
    ClientMessage,
    EngineFailed,
    EngineOutputs,
    EngineReady,
    Leave,
    Shutdown,
    Utility,
    UtilityResult,
)
from core.api.step_plan import SequenceKey
from core.engine import wire
from core.engine.clients import Client, Clients
from core.engine.core import EngineCore
from core.engine.token_ids import check_request
from core.engine.utilities import LONG, OWNER

logger = logging.getLogger(__name__)

READABLE = int(zmq.POLLIN)  # `&` with the enumeration takes a microsecond
IDLE_POLL_MS = 10
QUIET_MS = 10
"""Milliseconds without a message after which the engine counts as idle."""
HOLDER_MS = 1000
"""Milliseconds between two checks that clients which halt the engine are still there."""


class EngineLoop:
    """The main loop of one engine process: serves its clients.

    ready: greeting sent to a new client.
    clock: returns seconds of the machine's monotonic clock.
    """

    def __init__(
        self, core: EngineCore, clients: Clients, ready: EngineReady, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._core = core
        self._clients = clients
        self._socket = clients.socket
        self._ready = ready
        self._decoder = wire.client_message_decoder()
        self._running = True
        self._looked_at = -math.inf

    def run(self) -> None:
        """Serve until `Shutdown`. Blocks on the socket when there is no work.

        Raises EngineDeadError when nothing can be computed any more.
        """
        for client in self._clients:
            self._welcome(client)
        idle = False
        while True:
            if not self._core.has_work():
                self._await_message()
            # After a step that did nothing the next one would do nothing either until a message comes, at full processor load.
            self._drain(IDLE_POLL_MS if idle else 0)
            if not self._running:
                return
            if self._core.has_work():
                outputs = self._core.step()
                idle = not (outputs.outputs or outputs.stats.num_running or self._core.waits)
                for client, message in self._clients.share(outputs):
                    self._send(client, message)

    def _await_message(self) -> None:
        """Wait for the next message; without one, let the engine do idle work, a little at a time.

        Clients that halt the engine are checked now and then: one that has disappeared halts it no longer.
        """
        timeout_ms: int | None = QUIET_MS
        while not self._socket.poll(timeout_ms):
            timeout_ms = self._core.idle()
            waiting = self._core.waiting_clients
            if waiting:
                timeout_ms = HOLDER_MS if timeout_ms is None else timeout_ms
                self._look_for(waiting)
                if self._core.has_work():
                    return

    def _look_for(self, numbers: Iterable[int]) -> None:
        """Drop the given clients that cannot be reached; at most once in `HOLDER_MS`."""
        now = self._clock()
        if now - self._looked_at < HOLDER_MS / 1000:
            return
        self._looked_at = now
        for number in numbers:
            client = self._clients.find(number)
            if client is None:
                self._core.client_gone(number)
            else:
                # A ROUTER reports that a peer is gone only when something is sent to it, so any message serves as a probe.
                self._send(client, EngineOutputs(self._ready.epoch, [], self._core.stats()))

    def _drain(self, timeout_ms: int) -> None:
        """Handle all waiting messages; wait up to `timeout_ms` for the first one."""
        if timeout_ms != 0:
            self._socket.poll(timeout_ms)
        while self._running and cast(int, self._socket.getsockopt(zmq.EVENTS)) & READABLE:
            received = self._clients.receive()
            if received is None:
                continue
            client, frames = received
            if frames:
                self._handle(client, frames[0])
            else:
                self._welcome(client)

    def _welcome(self, client: Client) -> None:
        self._send(client, msgspec.structs.replace(self._ready, client=client.number))
        lasting = self._core.scheduler.live_stats
        if lasting.phase != "running" or lasting.weight_version:  # the client does not know of earlier changes
            self._core.has_news = True

    def _send(self, client: Client, message: msgspec.Struct) -> None:
        if not self._clients.send(client, message):
            logger.warning("Client %d has gone without a word; its requests end.", client.number)
            self._drop(client)

    def _handle(self, client: Client, payload: bytes) -> None:
        try:
            message: ClientMessage = self._decoder.decode(payload)
        except (*UNREADABLE, CoreError) as error:
            self._refuse(client, payload, error)
            return
        match message:
            case AddRequest():
                self._add(client, message)
            case AbortRequests():
                self._abort(client, message.request_ids)
            case AbortChoices():
                self._abort_choices(client, message.keys)
            case Utility():
                self._answer(client, message)
            case Leave():
                self._leave(client, message)
            case Shutdown():
                self._shut_down(client)

    def _add(self, client: Client, message: AddRequest) -> None:
        # Outputs are routed by handle: with another client's handle they would reach that client.
        if not all(client.owns(handle) for handle in message.handles):
            logger.error("Client %d sent a request under handles that are not its own.", client.number)
            return
        requests = message.choices()
        name = client.name(message.request.request_id)
        try:
            check_request(message.request, self._core.config.model)
        except RequestError as error:
            logger.error("Client %d sent a request that cannot run: %s", client.number, error)
            for request in requests:
                self._core.refuse(name, request.choice, request.handle, str(error))
            return
        for request in requests:
            request.request_id = name
        # Recorded before `add`, so that an immediate refusal finds the choice to end.
        client.live.setdefault(name, set()).update(request.choice for request in requests)
        self._core.add(requests)

    def _abort(self, client: Client, request_ids: Iterable[str]) -> None:
        names = [client.name(request_id) for request_id in request_ids]
        for name in names:
            client.live.pop(name, None)
        self._core.abort(names)

    def _abort_choices(self, client: Client, keys: Iterable[SequenceKey]) -> None:
        named = [(client.name(request_id), choice) for request_id, choice in keys]
        for key in named:
            client.end(key)
        self._core.abort_choices(named)

    def _leave(self, client: Client, message: Leave) -> None:
        if message.client is None:
            self._drop(client)
        elif client.number != OWNER:
            logger.error("Client %d declared client %d gone; only the owner may.", client.number, message.client)
        elif (other := self._clients.find(message.client)) is not None:
            self._dismiss(other, "its owner has declared this client gone.")
            self._drop(other)

    def _dismiss(self, client: Client, reason: str) -> None:
        """Report to a client, if it is still there, that the engine no longer serves it."""
        self._clients.send(client, EngineFailed(self._ready.epoch, reason, True, ""))

    def _drop(self, client: Client) -> None:
        """Remove a client, abort its requests, and end what it halts."""
        self._clients.remove(client)
        self._core.abort(list(client.live))
        self._core.client_gone(client.number)

    def _shut_down(self, client: Client) -> None:
        if client.number != OWNER:
            logger.error("Client %d asked the engine to end; only its owner may.", client.number)
            return
        self._running = False
        for other in self._clients:
            if other is not client:
                self._dismiss(other, "its owner has ended it.")

    def _refuse(self, client: Client, payload: bytes, error: Exception) -> None:
        """Refuse the requests of a message that cannot be read, as far as their names and handles can be."""
        logger.error("A message of %d bytes could not be read: %s", len(payload), error)
        try:
            beginning = msgspec.msgpack.decode(payload, type=wire.AddedNames)
        except UNREADABLE:
            return
        name = client.name(beginning.request.request_id)
        for choice, handle in enumerate(beginning.handles, start=beginning.request.choice):
            if client.owns(handle):
                self._core.refuse(name, choice, handle, f"The request could not be read by the engine: {error}")

    def _answer(self, client: Client, message: Utility) -> None:
        """Call a utility and send its result. All clients are notified before a long one begins, and when it has ended.

        They receive a change of the engine's state before the caller gets its result. If the caller took the state from the
        result, it could read that after a later message and go back to an older state.
        """
        takes_long = message.method in LONG
        if takes_long:
            self._broadcast_state(message.method)
        result = self._call(client, message)
        if takes_long or self._core.has_news:
            self._broadcast_state("")
        self._send(client, result)

    def _broadcast_state(self, utility: str) -> None:
        """Send the engine's state to all clients. utility: the call that is about to begin."""
        stats = self._core.stats()
        stats.utility = utility
        stats.utility_since = time.time() if utility else 0.0
        for client in self._clients:
            self._send(client, EngineOutputs(self._ready.epoch, [], stats))

    def _call(self, client: Client, message: Utility) -> UtilityResult:
        """Call a utility. A wrong call is reported to the client only; a failure within the utility is logged too.

        Raises EngineDeadError when nothing can be computed any more.
        """
        try:
            value = self._core.call(message.method, message.arguments, client.number)
            msgspec.msgpack.encode(value)  # what no message can hold is an error of this call
            return UtilityResult(message.call_id, True, value)
        except UtilityError as error:
            return UtilityResult(message.call_id, False, str(error))
        except EngineDeadError:
            raise
        except Exception as error:
            logger.error("Utility %r failed.", message.method, exc_info=error)
            return UtilityResult(message.call_id, False, f"Utility {message.method!r} failed: {error}")
