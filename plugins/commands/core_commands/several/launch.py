"""Start and end of a server with several models.

Owns: the order of start (port, models one after the other, requests), the end, and the exit code. Never does: compute.
Called by: `core serve`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from core.api.errors import ConfigError, CoreError, RequestError
from core_apis.server.http_server import HttpServer
from core_apis.server.lifetime import listen
from core_apis.server.loop_watch import loop_factory
from core_apis.server.process_limits import fit_connections
from core_apis.server.sockets import check_tls_files, close_listener, open_listener, url
from core_apis.server.stop_signals import StopSignals
from core_commands.client.host_memory import available_bytes
from core_commands.several.application import SeveralModels, create_app
from core_commands.several.child import ChildServer
from core_commands.several.entries import ModelEntry, read_entries
from core_commands.several.keeper import Keeper
from core_commands.several.limits import key_places, with_common_limits
from core_commands.several.turns import Seat, Turns
from core_config.arguments.parser import Parser
from core_config.arguments.sources import Merged, merge
from core_config.served.server import server_config
from core_config.served.server_config import ServerConfig
from core_frontend.queue.limit import QueueLimit
from core_observers.logging import SERVER_LIBRARIES, setup_logging

logger = logging.getLogger(__name__)

MOST_WAITING = 1024
"""Limit of requests that wait for one model, where --max-num-queued-reqs says none."""


def serve_several(words: list[str], signals: StopSignals) -> int:
    """Serve until a signal (exit code 0), or end because no model starts (1).

    Raises ConfigError, before anything starts, for every model that cannot be served; UserError for a port in use.
    """
    begin = time.perf_counter()
    parsed = Parser(collects=True, also=("--help",)).parse(words)
    problems = list(parsed.problems)
    own = {name: given for name, given in parsed.values.items() if name != "model"}
    merged = merge(own, {})
    problems += [problem for problem in merged.problems if problem not in problems]
    server = server_config(merged, problems)
    entries = read_entries(parsed, problems) if not problems else []
    budget = merged.value("model_budget") or _available_bytes()
    problems += budget_problems(entries, budget)
    if problems:
        raise ConfigError(problems)
    setup_logging(process="models", libraries=SERVER_LIBRARIES, config=server.log_config)
    check_tls_files(server)
    listener = open_listener(server)
    with listener, asyncio.Runner(loop_factory=loop_factory(server.max_callback_ms)) as runner:
        try:
            with tempfile.TemporaryDirectory(prefix="core-models-") as directory:
                server = with_common_limits(server, Path(directory))
                keeper = make_keeper(entries, merged, server, budget, Path(directory))
                places = key_places(server, merged)
                return runner.run(_serve(entries, keeper, server, places, listener, signals, begin))
        finally:
            runner.close()  # the loop restores signal handlers when it closes
            close_listener(server)
            signals.ignore()


def budget_problems(entries: Sequence[ModelEntry], budget: int) -> list[str]:
    """Return the models that could never be awake: beside those that are pinned, and what the others keep asleep."""
    found = []
    for entry in entries:
        others = [each for each in entries if each is not entry]
        beside = sum(each.awake_bytes if each.pinned else each.asleep_bytes for each in others)
        if entry.awake_bytes + beside > budget:
            reason = f" beside {_mib(beside)} of pinned models and cached blocks" if beside else ""
            found.append(
                f"--model-budget: model '{entry.name}' takes {_mib(entry.awake_bytes)}{reason}, and the budget is "
                f"{_mib(budget)}; give more, or less to the model: kv_cache_memory_bytes, max_num_batched_tokens."
            )
    return found


def make_keeper(
    entries: Sequence[ModelEntry], merged: Merged, server: ServerConfig, budget: int, directory: Path
) -> Keeper:
    """Return the keeper of all models, none of which is started yet. directory: for their sockets and arguments."""
    key, extra = _operator_key(server)
    common = {"shared_limits": server.limits.shared_limits}
    children = {}
    for number, entry in enumerate(entries):
        values = {**common, **entry.values, **extra}
        children[entry.name] = ChildServer(entry.name, values, directory, number, key)
    seats = [
        Seat(entry.name, entry.awake_bytes, entry.asleep_bytes, entry.pinned, entry.idle_timeout) for entry in entries
    ]
    return Keeper(
        Turns(seats, budget, merged.value("model_turn"), time.monotonic),
        children,
        merged.value("max_num_queued_reqs") or MOST_WAITING,
    )


def _operator_key(server: ServerConfig) -> tuple[str | None, dict[str, list[str]]]:
    """Return the key by which a model's server knows its operator, and arguments that give it one where it has none."""
    if server.admin_api_keys:
        return server.admin_api_keys[0], {}
    if len(server.api_keys) > 1:
        key = secrets.token_urlsafe(32)
        return key, {"admin_api_key": [key]}
    return (server.api_keys[0], {}) if server.api_keys else (None, {})


async def _serve(
    entries: list[ModelEntry],
    keeper: Keeper,
    server: ServerConfig,
    places: QueueLimit,
    listener: socket.socket,
    signals: StopSignals,
    begin: float,
) -> int:
    stop, hurry = listen(signals)
    settings = fit_connections(server)
    app = create_app(entries, keeper, settings, places)
    several: SeveralModels = app.state.several
    running = asyncio.ensure_future(keeper.run())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        loading = asyncio.ensure_future(_load_all(entries, keeper))
        await asyncio.wait((loading, stopping, running), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        if stopping.done():
            loading.cancel()
            return 0
        if not loading.result():
            print("core serve: no model could be started.", file=sys.stderr, flush=True)
            return 1
        http = HttpServer(app, settings)
        serving = asyncio.ensure_future(http.serve(sockets=[listener]))
        names = ", ".join(entry.name for entry in entries)
        took = time.perf_counter() - begin
        print(f"Serving {names} at {url(listener, settings)} (total {took:.2f} s)", flush=True)
        gc.collect()
        gc.freeze()
        await asyncio.wait((stopping, serving, running), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        await _drain(several, settings.shutdown_timeout, hurry)
        http.should_exit = True
        http.force_exit = several.drain.num_running > 0
        await serving
        return 0
    finally:
        for task in (running, stopping):
            task.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if hurry.is_set():
            keeper.kill()
        await keeper.close()


async def _drain(several: SeveralModels, seconds: float, hurry: asyncio.Event) -> None:
    """Let running requests end, for at most `seconds` and until a second signal."""
    several.drain.begin(seconds)
    idle, hurrying = asyncio.ensure_future(several.drain.idle()), asyncio.ensure_future(hurry.wait())
    await asyncio.wait((idle, hurrying), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in (idle, hurrying):
        task.cancel()


async def _load_all(entries: Sequence[ModelEntry], keeper: Keeper) -> int:
    """Start each model once, the first one last, so that it is awake at the end. Returns how many have started."""
    started = 0
    for entry in [*[each for each in entries if each.pinned], *[each for each in reversed(entries) if not each.pinned]]:
        try:
            await keeper.load(entry.name)
            started += 1
        except (RequestError, CoreError) as error:
            logger.error("%s", error)
    return started


def _available_bytes() -> int:
    """Return the memory that programs may still take, in bytes. Raises CoreError."""
    available = available_bytes()
    if available is None:
        raise CoreError("This system does not tell its available memory; give --model-budget.")
    return available


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.0f} MiB"
