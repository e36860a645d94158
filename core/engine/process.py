"""The engine process: `python -P -m core.engine.process --address ipc://...`.

Owns: the process around one `EngineCore`: its socket, its start, its last message. Never does: schedule, compute, decide when
to end by itself: it ends on `Shutdown`, with its parent, or when the engine is broken. Called by: `EngineProcess`, as a child
whose standard input stays open while the parent lives.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import shutil
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import zmq

from core.api.errors import CoreError, PluginError, UserError
from core.api.messages import EngineFailed, EngineReady
from core.engine import wire
from core.engine.clients import Clients
from core.engine.composition import build_engine, find_observers
from core.engine.executors import import_executor
from core.engine.loop import EngineLoop
from core.logging_setup import setup_logging
from core.processes import end_with_parent, leave_signals_to_parent


def serve(socket: zmq.Socket[bytes], executor_target: str | None, steps_file: int | None = None) -> int:
    """Wait for the owner, build the engine and run its loop. Returns the exit code; failures are reported to all clients.

    executor_target: MODULE:CLASS of an executor that is no plugin; None: the plugin that the configuration names.
    steps_file: descriptor of the file in which steps are recorded for the owner; None: there is none.
    """
    epoch = 0
    clients = Clients(socket)
    gc.disable()  # objects of a start stay alive: searching them for garbage takes a fifth of a second
    try:
        # Imports are the slowest part of a start, and the owner may take long to send the configuration: both at once.
        importing = ThreadPoolExecutor(1).submit(import_executor, executor_target)
        finding = ThreadPoolExecutor(1).submit(find_observers)  # its errors are raised below, where the owner gets them
        start = await_owner(clients)
        epoch = start.epoch
        name = f"engine-{start.config.data_parallel_rank}" if start.config.data_parallel_size > 1 else "engine"
        setup_logging(start.log_level, name, config=start.config.log_config)
        make_executor, import_s = importing.result()
        core = build_engine(start.config, make_executor, finding.result(), epoch=epoch, steps_file=steps_file)
        # Everything up to here lives as long as the process, so later collections need not visit it.
        gc.freeze()
        gc.enable()
        try:
            ready = EngineReady(
                epoch=epoch,
                num_blocks=core.executor.num_blocks,
                block_size=start.config.cache.block_size,
                max_model_len=start.config.model.max_model_len,
                numerics=core.executor.numerics,
                phases=[("import", import_s), *core.executor.phases],
            )
            EngineLoop(core, clients, ready).run()
        finally:
            core.close()
    except Exception as error:
        user_error = isinstance(error, UserError)
        message = str(error) if isinstance(error, CoreError) else f"{type(error).__name__}: {error}"
        plugin = error.plugin if isinstance(error, PluginError) else None
        failure = EngineFailed(epoch, message, user_error, traceback.format_exc(), plugin)
        for client in clients:
            clients.send(client, failure)
        return 2 if user_error else 1
    return 0


def await_owner(clients: Clients) -> wire.StartEngine:
    """Wait for the owner's first message and return it. Clients that greet earlier are welcomed once the engine is ready."""
    while True:
        received = clients.receive()
        if received is not None and received[1]:
            return msgspec.msgpack.decode(received[1][0], type=wire.StartEngine)


def remove_socket(address: str) -> None:
    """Remove the directory of the socket, because its owner is gone and cannot do so."""
    socket_path = address.removeprefix("ipc://")
    shutil.rmtree(os.path.dirname(socket_path), ignore_errors=True)


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the engine process."""
    # Ctrl+C reaches every process of the terminal; the parent decides when the engine ends.
    leave_signals_to_parent()
    faulthandler.enable()  # a crash, or the signal that ends a hanging step, then leaves the stacks in the log
    parser = argparse.ArgumentParser(prog="core.engine.process", description="One engine; started by its client.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--executor", help="MODULE:CLASS of an executor that is no plugin, for tests")
    parser.add_argument("--breadcrumbs", type=int, help="descriptor of the file in which steps are noted")
    options = parser.parse_args(arguments)
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    wire.configure(socket)
    socket.bind(options.address)
    end_with_parent(0, partial(remove_socket, options.address))  # after the bind: what is removed must exist by then
    try:
        return serve(socket, options.executor, options.breadcrumbs)
    finally:
        socket.close()
        context.term()


if __name__ == "__main__":
    sys.exit(main())
