"""The asyncio client for an engine in its own process.

Owns: `ZmqClient`: start, messages both ways, and noticing at once when the engine dies. Never does: text, or restarting.
Called by: `AsyncEngine`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError, PluginError, RequestError, UserError
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
    Shutdown,
    UtilityResult,
)
from core.api.step_plan import SequenceKey
from core.engine import wire
from core.engine.calls import OpenCalls
from core.engine.child import LAST_WORDS_S, EngineProcess
from core.engine.ledger import Ledger

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 1800.0
STOP_TIMEOUT_S = 5.0

OutputsHandler = Callable[[EngineOutputs], None]
DeathHandler = Callable[[EngineDeadError], None]


class ZmqClient:
    """One engine process. `start` it, `listen`, then `add` requests.

    ready:      what the engine said when it was up.
    dead_error: why the engine is gone, or None. Once set, every call raises it.
    """

    ready: EngineReady

    def __init__(self, process: EngineProcess, epoch: int) -> None:
        self.epoch = epoch
        self.dead_error: EngineDeadError | None = None
        self._process = process
        self._ledger = Ledger(epoch)
        self._on_outputs: OutputsHandler | None = None
        self._on_death: DeathHandler | None = None
        self._decoder = wire.engine_message_decoder()
        self._calls = OpenCalls()
        self._ping: asyncio.Future[str] | None = None
        self._asked_at = self._heard_at = time.monotonic()
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket = self._context.socket(zmq.ROUTER)
        wire.configure(self._socket)
        self._socket.bind(process.address)

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        epoch: int = 0,
        executor: str | None = None,
        process: EngineProcess | None = None,
        timeout_s: float = START_TIMEOUT_S,
    ) -> ZmqClient:
        """Start the process and wait until it is ready.

        executor: MODULE:CLASS of another executor than the default. process: one that was spawned already; this client
        then ends it. timeout_s: seconds until the start is given up.
        Raises UserError for a mistake in the configuration, PluginError when a plugin fails, EngineDeadError for anything else.
        """
        client = cls(process or EngineProcess.spawn(executor), epoch)
        try:
            client.ready = await client._handshake(config, timeout_s)
        except BaseException:
            await client.close(grace_s=0.0)
            raise
        client._process.forget_output()
        return client

    def listen(self, on_outputs: OutputsHandler, on_death: DeathHandler) -> None:
        """From now on hand each step's outputs to `on_outputs`, and the cause of death, once, to `on_death`."""
        self._on_outputs, self._on_death = on_outputs, on_death
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    async def add(self, requests: Sequence[EngineRequest]) -> None:
        """Send the choices of one request. Raises EngineDeadError, or RequestError for values that no message can hold."""
        self._note_question()
        self._ledger.admit(requests)
        try:
            payload = wire.encode(AddRequest(requests[0], [request.handle for request in requests]))
        except (TypeError, OverflowError, ValueError) as error:
            self._ledger.forget([request.request_id for request in requests])
            raise RequestError(f"The request cannot be sent to the engine: {error}.") from error
        await self._send(payload)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget all choices of these requests; their outputs are no longer delivered. Their ids are free at once: the
        engine hears of the abort before it hears of whoever has them next. Does nothing when the engine is gone."""
        self._ledger.forget(request_ids)
        self._post(AbortRequests(list(request_ids)))

    def abort_choices(self, keys: Sequence[SequenceKey]) -> None:
        """Forget single choices, as `abort` does."""
        self._ledger.forget_choices(keys)
        self._post(AbortChoices(list(keys)))

    async def call(self, method: str) -> str:
        """Call a utility of the engine core. Raises EngineDeadError when it dies or the utility fails."""
        self._check_open()
        return await self._ask(method)

    def ping(self) -> asyncio.Future[str]:
        """Ask for a sign of life, unless the last such question is still open. The engine answers between two steps.

        Raises EngineDeadError.
        """
        self._check_open()
        if self._ping is None or self._ping.done():
            self._ping = self._ask("ping")
        return self._ping

    @property
    def silence_s(self) -> float:
        """Seconds for which the engine has said nothing although requests or calls wait for it; 0.0 when none does."""
        return time.monotonic() - max(self._asked_at, self._heard_at) if self._is_awaited else 0.0

    async def close(self, grace_s: float = STOP_TIMEOUT_S) -> None:
        """Ask the engine to end, wait, terminate it if it does not; remove its sockets. May be called twice."""
        if self._closing:
            return
        self._closing = True
        if self.dead_error is None and grace_s > 0:
            await self._socket.send_multipart([wire.ENGINE_IDENTITY, wire.encode(Shutdown())])
        try:
            await self._process.stop(grace_s if self.dead_error is None else 0.0)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._calls.fail(EngineDeadError("The engine was closed."))
            self._socket.close(linger=0)
            self._context.term()

    @property
    def _is_awaited(self) -> bool:
        return bool(len(self._ledger) or self._calls)

    def _note_question(self) -> None:
        """Something is about to be sent that the engine will answer: if nothing was open, it owes a word from now on."""
        if not self._is_awaited:
            self._asked_at = time.monotonic()

    def _ask(self, method: str) -> asyncio.Future[str]:
        self._note_question()
        message, answer = self._calls.begin(method)
        self._post(message)
        return answer

    def _check_open(self) -> None:
        if self.dead_error is not None:
            raise self.dead_error
        if self._closing:
            raise EngineDeadError("The engine was closed; start a new one.")

    async def _send(self, payload: bytes) -> None:
        self._check_open()
        await self._socket.send_multipart([wire.ENGINE_IDENTITY, payload])

    def _post(self, message: ClientMessage) -> None:
        """Send without waiting: messages leave in the order of the calls, and the socket's queue has no limit."""
        if self.dead_error is None and not self._closing:
            self._socket.send_multipart([wire.ENGINE_IDENTITY, wire.encode(message)])

    async def _handshake(self, config: EngineConfig, timeout_s: float) -> EngineReady:
        """Greeting, configuration, readiness; watches the process meanwhile."""
        conversation = asyncio.create_task(self._converse(config))
        exit_ = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({conversation, exit_}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if exit_.done() and not conversation.done():
                await asyncio.wait({conversation}, timeout=LAST_WORDS_S)
            if conversation.done():
                return conversation.result()
            if exit_.done():
                raise EngineDeadError(f"The engine process ended while it started: it {self._process.obituary()}")
            raise EngineDeadError(f"The engine was not ready after {timeout_s:g} s; it was stopped.")
        finally:
            conversation.cancel()
            exit_.cancel()
            await asyncio.gather(conversation, exit_, return_exceptions=True)

    async def _converse(self, config: EngineConfig) -> EngineReady:
        _, greeting = await self._socket.recv_multipart()
        if greeting != wire.HELLO:
            raise EngineDeadError(f"The engine process greeted with {greeting!r}; expected {wire.HELLO!r}.")
        level = logging.getLogger("core").getEffectiveLevel()
        start = wire.encode(wire.StartEngine(self.epoch, config, level))
        await self._socket.send_multipart([wire.ENGINE_IDENTITY, start])
        _, payload = await self._socket.recv_multipart()
        message: Any = self._decoder.decode(payload)
        if isinstance(message, EngineReady):
            return message
        if isinstance(message, EngineFailed):
            if message.user_error:
                raise UserError(message.message)
            if message.plugin is not None:
                logger.debug("A plugin failed.\n%s", message.details)
                raise PluginError(message.message, message.plugin)
            logger.error("The engine failed to start.\n%s", message.details)
            raise EngineDeadError(f"The engine failed to start: {message.message}")
        raise EngineDeadError(f"The engine process answered with {type(message).__name__}; expected EngineReady.")

    async def _receive(self) -> None:
        try:
            while self.dead_error is None:
                _, payload = await self._socket.recv_multipart()
                self._heard_at = time.monotonic()
                self._dispatch(self._decoder.decode(payload))
        except EngineDeadError as error:
            self._die(error)
        except msgspec.DecodeError as error:
            self._die(EngineDeadError(f"The engine sent a message that cannot be read: {error}."))
        except Exception as error:
            logger.error("The engine's outputs could not be handled.", exc_info=error)
            self._die(EngineDeadError(f"The engine's outputs could not be handled ({type(error).__name__}: {error})."))

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
        """The process has ended: what it still had to say comes first, else how it ended is the cause."""
        await self._process.wait()
        await asyncio.wait({self._tasks[0]}, timeout=LAST_WORDS_S)
        self._die(EngineDeadError(f"The engine process ended unexpectedly: it {self._process.obituary()}"))

    def _die(self, error: EngineDeadError) -> None:
        if self.dead_error is not None or self._closing:
            return
        self.dead_error = error
        self._process.kill()
        self._process.remove_directory()
        self._calls.fail(error)
        if self._on_death is not None:
            self._on_death(error)
