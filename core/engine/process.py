"""The engine process: `python -P -m core.engine.process --address ipc://...`.

Owns: the process around one `EngineCore`: handshake, loop, last words. Never does: schedule, compute, decide when to end
on its own: it ends on `Shutdown`, with its parent, or when the engine is broken. Called by: `ZmqClient`, as a child
whose standard input stays open as long as the parent lives.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import msgspec
import zmq

from core.api.config import EngineConfig
from core.api.errors import CoreError, PluginError, UserError
from core.api.messages import (
    AbortChoices,
    AbortRequests,
    AddRequest,
    ClientMessage,
    EngineFailed,
    EngineReady,
    Shutdown,
    Utility,
    UtilityResult,
)
from core.engine import wire
from core.engine.core import EngineCore
from core.engine.executor import Executor
from core.observe.logging import setup_logging

logger = logging.getLogger(__name__)

DEFAULT_EXECUTOR = "core.executor.uniproc:UniprocExecutor"
IDLE_POLL_MS = 10
QUIET_MS = 10
"""Silence after which idle time has begun."""


class EngineLoop:
    """Messages in, steps, messages out."""

    def __init__(self, core: EngineCore, socket: zmq.Socket[bytes]) -> None:
        self._core = core
        self._socket = socket
        self._decoder = wire.client_message_decoder()
        self._running = True

    def run(self) -> None:
        """Serve until `Shutdown`. Blocks on the socket when there is no work."""
        idle = False
        while True:
            if not self._core.has_work():
                self._await_message()
            self._drain(IDLE_POLL_MS if idle else 0)
            if not self._running:
                return
            if self._core.has_work():
                outputs = self._core.step()
                idle = not (outputs.outputs or outputs.stats.num_running or self._core.waits_for_kv)
                self._socket.send(wire.encode(outputs))

    def _await_message(self) -> None:
        """Wait, for ever; in silence the core saves what is cached, a little at a time."""
        timeout_ms: int | None = QUIET_MS
        while not self._socket.poll(timeout_ms):
            timeout_ms = self._core.save_idle()

    def _drain(self, timeout_ms: int) -> None:
        """Handle all messages that wait; wait for the first one up to `timeout_ms`."""
        if timeout_ms != 0:
            self._socket.poll(timeout_ms)
        while self._running and cast(int, self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._handle(self._socket.recv())

    def _handle(self, payload: bytes) -> None:
        try:
            message: ClientMessage = self._decoder.decode(payload)
        except (msgspec.DecodeError, CoreError) as error:
            self._refuse(payload, error)
            return
        match message:
            case AddRequest():
                self._core.add(message.choices())
            case AbortRequests():
                self._core.abort(message.request_ids)
            case AbortChoices():
                self._core.abort_choices(message.keys)
            case Utility():
                self._socket.send(wire.encode(self._call(message)))
            case Shutdown():
                self._running = False

    def _refuse(self, payload: bytes, error: Exception) -> None:
        """A message that cannot be read ends its own requests, if they can be made out, and nothing else."""
        logger.error("A message of %d bytes could not be read: %s", len(payload), error)
        try:
            tag, request, handles, *_ = msgspec.msgpack.decode(payload)
            request_id, numbers = str(request[0]), [int(number) for number in handles] if tag == "add" else []
        except (msgspec.DecodeError, ValueError, TypeError, LookupError):
            return
        for choice, handle in enumerate(numbers):
            self._core.refuse(request_id, choice, handle, f"The request could not be read by the engine: {error}")

    def _call(self, message: Utility) -> UtilityResult:
        try:
            return UtilityResult(message.call_id, True, self._core.call(message.method))
        except Exception as error:
            logger.error("Utility %r failed.", message.method, exc_info=error)
            return UtilityResult(message.call_id, False, str(error))


def serve(socket: zmq.Socket[bytes], executor_target: str) -> int:
    """Handshake, build, loop. Returns the exit code; failures are reported to the client."""
    epoch = 0
    gc.disable()  # what a start makes is there to stay: looking for garbage among it takes a fifth of a second
    try:
        importing = ThreadPoolExecutor(1).submit(import_executor, executor_target)  # slow; the configuration may be too
        socket.send(wire.HELLO)
        start = msgspec.msgpack.decode(socket.recv(), type=wire.StartEngine)
        epoch = start.epoch
        setup_logging(start.log_level, "engine")
        core, phases = build(start.config, epoch, *importing.result())
        try:
            ready = EngineReady(
                epoch=epoch,
                num_blocks=core.executor.num_blocks,
                block_size=start.config.cache.block_size,
                max_model_len=start.config.model.max_model_len,
                numerics=core.executor.numerics,
                phases=phases,
            )
            socket.send(wire.encode(ready))
            EngineLoop(core, socket).run()
        finally:
            core.close()
    except Exception as error:
        user_error = isinstance(error, UserError)
        message = str(error) if isinstance(error, CoreError) else f"{type(error).__name__}: {error}"
        plugin = error.plugin if isinstance(error, PluginError) else None
        socket.send(wire.encode(EngineFailed(epoch, message, user_error, traceback.format_exc(), plugin)))
        return 2 if user_error else 1
    return 0


ExecutorFactory = Callable[[EngineConfig], Executor]


def import_executor(target: str) -> tuple[ExecutorFactory, float]:
    """The class that MODULE:CLASS names, and the seconds that it took to import."""
    begin = time.perf_counter()
    module, _, name = target.partition(":")
    factory: ExecutorFactory = getattr(importlib.import_module(module), name)
    return factory, time.perf_counter() - begin


def build(
    config: EngineConfig, epoch: int, factory: ExecutorFactory, import_s: float
) -> tuple[EngineCore, list[tuple[str, float]]]:
    """The engine core with its executor, and the phases of the start."""
    executor = factory(config)
    core = EngineCore(config, executor, epoch)
    gc.freeze()
    gc.enable()
    return core, [("import", import_s), *executor.phases]


def end_with_parent(address: str) -> None:
    """End this process, and remove its socket, when standard input closes: the parent holds the other end and never
    writes."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        socket_path = address.removeprefix("ipc://")
        shutil.rmtree(os.path.dirname(socket_path), ignore_errors=True)  # the socket may not be there yet
        os._exit(3)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the engine process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="core.engine.process", description="One engine; started by its client.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--executor", default=DEFAULT_EXECUTOR, help="MODULE:CLASS of the executor")
    options = parser.parse_args(arguments)
    end_with_parent(options.address)
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    wire.configure(socket)
    socket.setsockopt(zmq.IDENTITY, wire.ENGINE_IDENTITY)
    socket.connect(options.address)
    try:
        return serve(socket, options.executor)
    finally:
        socket.close()
        context.term()


if __name__ == "__main__":
    sys.exit(main())
