"""A real HTTP server over the fake engine, in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from core_apis.app import create_app
from core_apis.durable.restoring import restore
from core_apis.durable.streams import durable_streams
from core_apis.journal.journal import Journal
from core_apis.prepare.preparer import Preparer
from core_apis.server.http_server import HttpServer
from core_apis.server.sockets import bind, open_listener, url
from core_config.served.server_config import ServerConfig
from core_frontend.async_engine import AsyncEngine
from tests.apis.fake_engine import FakeClient, client_of, make_engine

if TYPE_CHECKING:
    import anthropic  # ten seconds of processor time, which each process of a test run would need


@dataclass
class RunningServer:
    """url: without a path. engine, fake, preparer: use them only to look."""

    url: str
    engine: AsyncEngine
    fake: FakeClient
    preparer: Preparer
    loop: asyncio.AbstractEventLoop
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, timeout=20, verify=False)

    @cached_property
    def client(self) -> openai.OpenAI:
        """One for all requests of a module: making one takes longer than most answers."""
        return self.openai()

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, **options})

    def async_openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def anthropic(self, **options: Any) -> anthropic.Anthropic:
        from anthropic import Anthropic

        return Anthropic(base_url=self.url, **{"api_key": "none", "max_retries": 0, **options})

    def wait_idle(self, seconds: float = 3.0) -> None:
        """Wait until no sequence runs any more."""
        deadline = time.monotonic() + seconds
        while self.fake.live:
            assert time.monotonic() < deadline, f"still running: {list(self.fake.live)}"
            time.sleep(0.01)


@contextmanager
def run_server(config: ServerConfig | None = None, **engine_options: Any) -> Iterator[RunningServer]:
    config = config or ServerConfig()
    started: list[tuple[AsyncEngine, HttpServer, Preparer, asyncio.AbstractEventLoop]] = []
    listener = bind("127.0.0.1", 0) if config.uds is None else open_listener(config)
    address = url(listener, config)

    async def main() -> None:
        engine = make_engine(**engine_options)
        journal = None
        if config.journal is not None:
            journal = Journal(config.journal.directory, config.journal.max_bytes)
        durable = durable_streams(journal, config, engine.model_config, engine.ready.numerics)
        app = create_app(engine, config, engine.model_config, engine.config.cache, durable)
        restore(app.state.context)
        server = HttpServer(app, config)
        preparer = app.state.context.preparer
        started.append((engine, server, preparer, asyncio.get_running_loop()))
        await server.serve(sockets=[listener])
        await app.state.context.close()
        await engine.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not (started and started[0][1].started):
        assert thread.is_alive() and time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    engine, server, preparer, loop = started[0]
    running = RunningServer(address, engine, client_of(engine), preparer, loop)
    try:
        yield running
    finally:
        running.http.close()
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server(ServerConfig(uvicorn_log_level="warning")) as running:
        yield running


@pytest.fixture
def start_server() -> Callable[..., Any]:
    """`with start_server(config, **engine options) as running`."""
    return run_server


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
