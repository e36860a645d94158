"""The target of a terminal session: a running server, or an own engine.

Owns: the choice, and the name of the model. Never does: send a prompt. Called by: chat, complete.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.api.errors import ConfigError, UserError
from core.args.arg import Given
from core_commands.client.endpoint import Endpoint, EndpointError, whole
from core_commands.client.http_endpoint import HttpEndpoint
from core_commands.client.loop_thread import LoopThread
from core_commands.client.own_engine import refuse_beside_url
from core_commands.client.served_names import served_name

if TYPE_CHECKING:
    from core_config.arguments.parser import Parsed

USUAL_URL = "http://127.0.0.1:8000"
LOOK_SECONDS = 3.0
"""Time limit for identifying a server of this project at the default address."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a session. endpoint: where requests go. model: its name there. place: for messages."""

    endpoint: Endpoint
    model: str
    place: str
    loop: LoopThread


@contextmanager
def target(parsed: Parsed, url: str | None, model_name: str | None, api_key: str | None) -> Iterator[Target]:
    """Open the server at `url`; without one, an engine for the model that `parsed` names; with neither, the server on
    this machine's port 8000 if it is one of this project, else an engine for the embedded model.

    model_name: the served name; None: the server's first. Raises UserError, EndpointError when there is no such server,
    and any error of starting an engine.
    """
    if url is not None:
        refuse_beside_url(parsed)
    elif "port" in parsed.values:
        port = parsed.values["port"].value
        raise UserError(
            f"--port: no port is opened here; a server that runs is named with --url http://127.0.0.1:{port}."
        )
    elif parsed.problems:
        raise ConfigError(parsed.problems)
    key = api_key or os.environ.get("CORE_API_KEY")
    with LoopThread() as loop:
        if url is None and not parsed.values:
            url = loop.run(_usual_server(key))
        if url is None:
            endpoint, place = _own_engine(parsed, loop), "an engine of its own"
        else:
            endpoint, place = HttpEndpoint(url, key), url
        try:
            name = loop.run(served_name(endpoint, model_name))
            yield Target(endpoint, name, place, loop)
        finally:
            loop.run(endpoint.close())


async def _usual_server(key: str | None) -> str | None:
    """Return the url of a server of this project at the default address; None when there is none."""
    endpoint = HttpEndpoint(USUAL_URL, key)
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            async with endpoint.ask("GET", "/version") as answer:
                body = await whole(answer)
        return USUAL_URL if answer.status == 200 and b'"version"' in body else None
    except (EndpointError, TimeoutError):
        return None
    finally:
        await endpoint.close()


def _own_engine(parsed: Parsed, loop: LoopThread) -> Endpoint:
    """Start an engine that ends with the command. It logs warnings and errors only."""
    from core_commands.client.early_engine import spawn_early
    from core_commands.client.own_engine import announce, own_endpoint, resolved
    from core_observers.logging import setup_logging

    parsed.values.setdefault("disable_log_stats", Given(True, "the command"))
    process = spawn_early(parsed.values)
    try:
        setup_logging(logging.WARNING)
        resolution = resolved(parsed)
        setup_logging(logging.WARNING, config=resolution.server.log_config)
        announce(resolution)
        return loop.enter(own_endpoint(resolution, process))
    except BaseException:
        process.discard()
        raise
