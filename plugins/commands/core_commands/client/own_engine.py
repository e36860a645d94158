"""An engine for one command: the server's application over its own engine process, without a port.

Owns: start and shutdown of both, and the arguments that are meaningless without a port. Never does: send a request.
Called by: the commands that run a model themselves.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from core.api.errors import ConfigError, UserError
from core_commands.client.early_engine import spawn_early

if TYPE_CHECKING:
    from core_commands.client.app_endpoint import AppEndpoint
    from core_config.arguments.parser import Parsed
    from core_config.resolve import Resolution
    from core_supervision.child import EngineProcess

Work = Callable[["AppEndpoint", "Resolution"], Coroutine[None, None, int]]

WITHOUT_MEANING = {
    "host": "no port is opened",
    "port": "no port is opened",
    "uds": "no socket is opened",
    "api_key": "nobody else can send requests",
    "admin_api_key": "nobody else can send requests",
    "public_prompt": "nobody else shares the cache",
    "allowed_origins": "no browser can send requests",
    "allowed_methods": "no browser can send requests",
    "allowed_headers": "no browser can send requests",
    "allow_credentials": "no browser can send requests",
    "shutdown_timeout": "the command ends when its work is done",
    "api_server_count": "no port is opened",
    "root_path": "there is no proxy",
    "ssl_keyfile": "no port is opened",
    "ssl_certfile": "no port is opened",
    "ssl_ca_certs": "no port is opened",
    "ssl_cert_reqs": "no port is opened",
    "ssl_ciphers": "no port is opened",
    "enable_ssl_refresh": "no port is opened",
    "sse_keep_alive_interval": "no proxy reads streams",
    "enable_server_load_tracking": "nobody asks for the load",
    "disable_fastapi_docs": "no pages are served",
    "enable_tokenizer_info_endpoint": "nobody asks for the tokenizer",
    "served_model_name_file": "nobody names the model",
    "disable_ui": "no pages are served",
    "vllm_metrics": "nobody asks for metrics",
    "show_hidden_metrics_for_version": "nobody asks for metrics",
    "enable_mfu_metrics": "nobody asks for metrics",
    "cudagraph_metrics": "nobody asks for metrics",
    "uvicorn_log_level": "there is no HTTP server",
    "disable_uvicorn_access_log": "there is no HTTP server",
    "enable_request_id_headers": "nobody sees headers",
    "request_journal": "there are no streams to read again",
    "quotes": "nobody else sends requests",
    "record_traffic": "nobody else sends requests",
    "batch_directory": "nobody else can send requests",
    "batch_directory_size": "nobody else can send requests",
    "max_batch_requests": "nobody else can send requests",
    "max_connections": "no port is opened",
    "max_header_size": "no port is opened",
    "request_read_timeout": "no port is opened",
    "keep_alive_timeout": "no port is opened",
    "headless": "the command has an engine of its own",
    "node_rank": "the command has an engine of its own",
    "data_parallel_size_local": "the command has an engine of its own",
}
"""Arguments of `core serve` that these commands reject, with the reason."""


def run_with_own_engine(parsed: Parsed, work: Work) -> int:
    """Start an engine, run `work`, and shut the engine down; returns the result of `work`.

    parsed: engine arguments.

    Raises UserError for wrong arguments, PluginError, EngineDeadError when the engine does not start.
    """
    process = spawn_early(parsed.values)  # it imports its modules while the arguments are resolved here
    try:
        resolution = resolved(parsed)
        announce(resolution)
        return asyncio.run(_run(resolution, process, work))
    finally:
        process.discard()


def resolved(parsed: Parsed) -> Resolution:
    """Return the configuration of such an engine; warnings go to standard error.

    Raises ConfigError with every problem, UserError when tracing is requested but its exporter is not installed.
    """
    from core_apis.observed.tracing import check_tracing
    from core_config.resolve import resolve
    from core_config.served.remote import refuse_remote

    problems = [*parsed.problems, *refusals(set(parsed.values))]
    resolution = resolve(parsed.values, context="serve", problems=problems)
    for warning in [*parsed.warnings, *resolution.warnings]:
        print(f"core: warning: {warning}", file=sys.stderr)
    check_tracing(resolution.server.traces)
    refuse_remote(resolution.server)
    return resolution


def announce(resolution: Resolution) -> None:
    """Print that an engine is starting, since there is no other output for a while."""
    print(f"Starting {resolution.engine.model.served_names[0]} ...", file=sys.stderr)


def refuse_beside_url(parsed: Parsed) -> None:
    """Raise UserError for engine arguments given together with a server url, ConfigError for invalid ones."""
    if parsed.values:
        given = ", ".join(parsed.values)
        raise UserError(f"--url names a server, which has its own model and arguments; leave out: {given}.")
    if parsed.problems:
        raise ConfigError(parsed.problems)


def refusals(names: set[str]) -> list[str]:
    """Return an error for each argument that such a command cannot use."""
    found: list[str] = []
    for name, reason in WITHOUT_MEANING.items():
        if name in names:
            flag = "--" + name.replace("_", "-")
            found.append(f"{flag}: has no meaning here, since {reason}; leave it out, or use core serve.")
    return found


async def _run(resolution: Resolution, process: EngineProcess, work: Work) -> int:
    from core_observers.logging import setup_logging

    setup_logging(process="main", libraries=("asyncio",), config=resolution.server.log_config)
    async with own_endpoint(resolution, process) as endpoint:
        return await work(endpoint, resolution)


@asynccontextmanager
async def own_endpoint(resolution: Resolution, process: EngineProcess) -> AsyncIterator[AppEndpoint]:
    """Start an engine and open the endpoint of its application. Raises as `AsyncEngine.start` does."""
    from core_apis.server.launch import start_engine

    engine, helper = await start_engine(resolution, process)
    from core_apis.app import create_app
    from core_commands.client.app_endpoint import AppEndpoint

    settings = msgspec.structs.replace(resolution.server, api_keys=(), admin_api_keys=(), journal=None, batches=None)
    try:
        app = create_app(engine, settings, engine.config.model, engine.config.cache)
        app.state.context.preparer.warm(helper)
        try:
            yield AppEndpoint(app)
        finally:
            await app.state.context.close()
    finally:
        await engine.close()
    if engine.dead_error is not None:
        raise engine.dead_error
