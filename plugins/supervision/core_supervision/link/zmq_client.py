"""The asyncio client of an engine that runs in its own process.

Owns: `ZmqClient`: messages in both directions, and detecting at once that the engine died, and why. Never does: text, restart.
Called by: `AsyncEngine`.

The client that starts an engine owns it and ends it. Others connect to the same engine and leave again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from core.api.errors import EngineDeadError, RequestError
from core.api.messages import (
    NO_TOKENS,
    AbortChoices,
    AbortRequests,
    AddRequest,
    ClientMessage,
    EngineFailed,
    EngineMessage,
    EngineOutputs,
    EngineReady,
    EngineRequest,
    Leave,
    UtilityResult,
)
from core.api.step_plan import SequenceKey
from core.engine import wire
from core_supervision.link.calls import OpenCalls
from core_supervision.link.connection import EngineConnection, SocketConnection
from core_supervision.link.ledger import Ledger
from core_supervision.link.turns import Turns

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
LARGE_REQUEST = 256 * 1024
"""Size in bytes from which a request is encoded outside the event loop: a compiled grammar has up to 32 MB."""
ID_BYTES = 3
"""Bytes that most token ids take in a message."""
QUIET_S = 0.02
"""Seconds without a message from an engine that has ended, after which no further one is expected."""

OutputsHandler = Callable[[EngineOutputs], None]
DeathHandler = Callable[[EngineDeadError], None]


class ZmqClient:
    """One client of one engine, used from one event loop.

    `connect` to an engine or start one (`core_supervision.owned_engine`); then `listen` and `add` requests.

    ready:      the engine's greeting.
    for_others: whether further clients use this engine, so that its owner has to probe it also while it owes no answer here.
    dead_error: why the engine is gone, or None. Once it is set, every call raises it.
    on_asked:   called when somebody has sent SIGTERM to the engine, which this client has started. None: it goes on.
    """

    def __init__(self, engine: EngineConnection, ready: EngineReady) -> None:
        self.ready = ready
        self.epoch = ready.epoch
        self.dead_error: EngineDeadError | None = None
        self._engine = engine
        self._ledger = Ledger(ready.epoch, ready.client)
        self._on_outputs: OutputsHandler | None = None
        self._on_death: DeathHandler | None = None
        self._calls = OpenCalls()
        self._ping: asyncio.Future[Any] | None = None
        self.for_others = False
        self.on_asked: Callable[[], None] | None = None
        self._asked_at = self._heard_at = time.monotonic()
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def connect(
        cls, address: str, *, timeout_s: float | None = CONNECT_TIMEOUT_S, engine: EngineConnection | None = None
    ) -> ZmqClient:
        """Connect to an engine that another client has started.

        address:   the owner's `address`.
        timeout_s: seconds to wait; None: no limit. An engine in a long call, such as a sleep, answers after it.
        engine:    a connection to use instead of the usual `SocketConnection`.

        Raises EngineDeadError when no engine answers in time, or one with another version of the protocol.
        """
        engine = engine or SocketConnection(address)
        try:
            ready = await asyncio.wait_for(engine.greet(), timeout_s)
        except BaseException as error:
            engine.close()
            if isinstance(error, TimeoutError):
                raise EngineDeadError(f"No engine answered at {address} for {timeout_s:g} s; is it running?") from None
            raise
        return cls(engine, ready)

    def listen(self, on_outputs: OutputsHandler, on_death: DeathHandler) -> None:
        """Start receiving: pass each step's outputs to `on_outputs`, and the cause of death, once, to `on_death`."""
        self._on_outputs, self._on_death = on_outputs, on_death
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]

    @property
    def address(self) -> str:
        """The address to which further clients `connect`."""
        return self._engine.address

    @property
    def is_owner(self) -> bool:
        """Whether this client started the engine, so that it may end it."""
        return self._engine.pid is not None

    @property
    def pid(self) -> int:
        """Process id of the engine. Raises ValueError for a client that is not its owner."""
        pid = self._engine.pid
        if pid is None:
            raise ValueError("This client did not start the engine; ask the one that did for its process id.")
        return pid

    async def add(self, requests: Sequence[EngineRequest]) -> None:
        """Send the choices of one request. Raises EngineDeadError, or RequestError for values that no message can hold.

        A large request is encoded in a thread; one that is aborted meanwhile is not sent.
        """
        self._note_question()
        # Before the first await, so that an abort meanwhile finds the request.
        self._ledger.admit(requests)
        handles = [request.handle for request in requests]
        in_thread = _size(requests[0]) > LARGE_REQUEST
        try:
            for message in _messages(requests, self._engine.clock_offset_s):
                payload = await asyncio.to_thread(wire.encode, message) if in_thread else wire.encode(message)
                _check_size(payload, self._engine.max_message_bytes)
                # Aborted while the thread was encoding: the abort was sent first, so the engine would never drop it.
                if in_thread and not any(map(self._ledger.name_of, handles)):
                    return
                await self._send(payload)
        except (TypeError, OverflowError, ValueError) as error:
            self.abort([requests[0].request_id])  # some of its choices may have been sent
            raise RequestError(f"The request cannot be sent to the engine: {error}.") from error

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort all choices of these requests; their outputs are no longer delivered.

        Their ids may be reused at once: the engine receives the abort before a new request with such an id. Does nothing when
        the engine is gone.
        """
        self._ledger.forget(request_ids)
        self._post(AbortRequests(list(request_ids)))

    def abort_choices(self, keys: Sequence[SequenceKey]) -> None:
        """Abort single choices, as `abort` does for requests."""
        self._ledger.forget_choices(keys)
        self._post(AbortChoices(list(keys)))

    def declare_gone(self, client: int) -> None:
        """Report to the engine, as its owner, that another client is gone: its requests end.

        client: that client's `ready.client`.
        """
        self._post(Leave(client))

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a utility of the engine core; returns its result.

        Raises UtilityError when the utility refuses or fails, EngineDeadError when the engine dies.
        """
        self._check_open()
        return await self._ask(method, arguments or {})

    def ping(self) -> asyncio.Future[Any]:
        """Send a ping, unless the last one is still unanswered; returns its future. The engine answers between two steps.

        Raises EngineDeadError.
        """
        self._check_open()
        if self._ping is None or self._ping.done():
            self._ping = self._ask("ping", {})
        return self._ping

    def asked_to_end(self) -> None:
        """Tell whoever may end the engine that somebody wants it."""
        if self.on_asked is None:
            logger.info("The engine's process got SIGTERM, which does not end it: the end of its server does.")
        elif self.dead_error is None and not self._closing:
            self.on_asked()

    def name_of(self, handle: int) -> str:
        """Return the id of this client's live request with this handle, otherwise a text that is no such id."""
        return self._ledger.name_of(handle) or f"handle {handle}"

    @property
    def silence_s(self) -> float:
        """Seconds without a message from the engine although requests or calls wait for it; 0.0 when none does."""
        # An idle engine owes nothing, so its silence counts from the first open question, not from its last message.
        return time.monotonic() - max(self._asked_at, self._heard_at) if self._is_awaited else 0.0

    async def close(self, grace_s: float = STOP_TIMEOUT_S) -> None:
        """Disconnect from the engine; the owner's `close` ends it. May be called twice.

        grace_s: seconds that an engine started by this client has to end by itself before it is killed.
        """
        if self._closing:
            return
        self._closing = True
        try:
            # A dead engine gets no time to end by itself.
            await self._engine.leave(grace_s if self.dead_error is None else 0.0)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._calls.fail(EngineDeadError("The engine was closed."))
            self._engine.close()

    def abandon(self) -> None:
        """Kill an engine started by this client and close the socket, without waiting: the event loop may have ended."""
        if self._closing:
            return
        self._closing = True
        for task in self._tasks:
            task.cancel()
        self._engine.give_up()
        self._calls.fail(EngineDeadError("The engine was closed."))
        self._engine.close()

    def kill(self) -> None:
        """Kill an engine started by this client; `close` then has nothing to wait for."""
        if self.dead_error is None:
            self._engine.give_up()

    @property
    def _is_awaited(self) -> bool:
        return bool(len(self._ledger) or self._calls)

    def _note_question(self) -> None:
        """Start timing the engine's silence, if nothing was open, before something is sent that it will answer."""
        if not self._is_awaited:
            self._asked_at = time.monotonic()

    def _ask(self, method: str, arguments: Mapping[str, Any]) -> asyncio.Future[Any]:
        self._note_question()
        message, answer = self._calls.begin(method, arguments)
        self._post(message)
        return answer

    def _check_open(self) -> None:
        if self.dead_error is not None:
            raise self.dead_error
        if self._closing:
            raise EngineDeadError("The engine was closed; start a new one.")

    async def _send(self, payload: bytes) -> None:
        self._check_open()
        await self._engine.post(payload)

    def _post(self, message: ClientMessage) -> None:
        """Send a message without waiting, unless the engine is gone."""
        if self.dead_error is None and not self._closing:
            self._engine.post(wire.encode(message))

    async def _receive(self) -> None:
        turns = Turns()
        try:
            while self.dead_error is None:
                # Without it, a few answers with the logprobs of the whole vocabulary stopped all streams and /health until the
                # last of them was handled: `receive` does not suspend while messages are there.
                await turns.give_way()
                message = await self._engine.receive()
                self._heard_at = time.monotonic()
                if self.dead_error is None:
                    self._dispatch(message)
        except EngineDeadError as error:
            self._die(error)
        except Exception as error:
            logger.error("The engine's outputs could not be handled.", exc_info=error)
            cause = f"The engine's outputs could not be handled ({type(error).__name__}: {error})."
            self._die(EngineDeadError(cause))

    def _dispatch(self, message: EngineMessage) -> None:
        match message:
            case EngineOutputs():
                if message.epoch == self.epoch and self._on_outputs is not None:
                    message.outputs, message.tokens = self._ledger.accept(message), NO_TOKENS
                    self._on_outputs(message)
            case UtilityResult():
                self._calls.settle(message)
            case EngineFailed():
                logger.error("The engine failed.\n%s", message.details)
                raise EngineDeadError(f"The engine failed: {message.message}")
            case EngineReady():
                raise EngineDeadError("The engine process said twice that it is ready; it cannot be trusted.")

    async def _watch(self) -> None:
        """Wait until the engine has ended, handle its last messages, and report the cause of its death."""
        error = await self._engine.until_ended(self)
        # Its last words may still be in the socket, and an `EngineFailed` among them is a better cause than an exit code.
        # The wait ends with the messages, not after a fixed time, which every recovery would have to wait.
        heard_at = 0.0
        while heard_at != self._heard_at and not self._tasks[0].done():
            heard_at = self._heard_at
            await asyncio.wait({self._tasks[0]}, timeout=QUIET_S)
        self._die(error)

    def _die(self, error: EngineDeadError) -> None:
        if self.dead_error is not None or self._closing:
            return
        if error.suspects is None:
            error.suspects = self._engine.suspects()
        self.dead_error = error
        self._engine.give_up()
        self._calls.fail(error)
        if self._on_death is not None:
            self._on_death(error)


def _messages(requests: Sequence[EngineRequest], offset_s: float) -> list[AddRequest]:
    """Build the messages of a request: one for all choices, or one for each if they resume with tokens of their own.

    offset_s: seconds that the engine's clock is ahead of this process's, by which deadlines are given.
    """
    if offset_s and requests[0].deadline:
        deadline = requests[0].deadline + offset_s
        requests = [msgspec.structs.replace(request, deadline=deadline) for request in requests]
    if any(request.resume is not None for request in requests):
        return [AddRequest(request, [request.handle]) for request in requests]
    return [AddRequest(requests[0], [request.handle for request in requests])]


def _size(request: EngineRequest) -> int:
    """Estimate the bytes that the long parts of a request take in a message, without encoding it."""
    num_ids = len(request.prompt_token_ids) + sum(map(len, request.bad_words_ids))
    num_bytes = (
        len(request.allowed_ids) + len(request.prompt_embeds) + sum(len(item.features) for item in request.media)
    )
    grammar = 0 if request.grammar is None else len(request.grammar.data)
    return ID_BYTES * num_ids + num_bytes + grammar


def _check_size(payload: bytes, most: int | None) -> None:
    """Raise ValueError for a message that is too long to be sent. most: limit in bytes; None: no limit."""
    if most is not None and len(payload) > most:
        raise ValueError(f"it is a message of {len(payload)} bytes, and the engine takes at most {most}")
