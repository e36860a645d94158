"""Clients that connect, or send, while the server ends: each gets an answer or no connection."""

import asyncio
import socket
from collections.abc import Callable

import pytest
from fastapi import FastAPI

from core_apis.server.http_server import HttpServer
from core_apis.server.sockets import bind
from core_config.served.server_config import ServerConfig
from tests.apis.test_connections import answer

REQUEST = b"GET /here HTTP/1.1\r\nhost: x\r\n\r\n"
CALLERS = 20
"""More than the loop accepts at once."""


class Ending(HttpServer):
    """A server that ends without another look at its sockets after `last_thing`."""

    last_thing: Callable[[], None] | None = None

    async def on_tick(self, counter: int) -> bool:
        if self.last_thing is None:
            return await super().on_tick(counter)
        self.last_thing()
        return True


def application() -> FastAPI:
    app = FastAPI()

    @app.get("/here")
    async def here() -> str:
        return "here"

    return app


async def until_started(server: HttpServer) -> None:
    while not server.started:
        await asyncio.sleep(0.01)


async def test_whoever_has_connected_when_the_server_ends_gets_an_answer() -> None:
    listener = bind("127.0.0.1", 0)
    address = listener.getsockname()
    server = Ending(application(), ServerConfig(uvicorn_log_level="warning"))
    serving = asyncio.create_task(server.serve([listener]))
    await until_started(server)

    kept, slow, silent = early = [socket.create_connection(address) for _ in range(3)]
    kept.sendall(REQUEST)
    late: list[socket.socket] = []
    while len(server.clients) < len(early) or not server.server_state.total_requests:
        await asyncio.sleep(0.01)
    assert (await asyncio.to_thread(kept.recv, 65536)).startswith(b"HTTP/1.1 200")

    def last_thing() -> None:
        late.extend(socket.create_connection(address) for _ in range(CALLERS))
        for caller in (kept, *late):
            caller.sendall(REQUEST)
        slow.sendall(REQUEST[:20])

    server.last_thing = last_thing
    await serving

    for caller in (kept, *late):
        told = answer(caller)
        assert told.startswith(b"HTTP/1.1 200"), told
        assert b"connection: close" in told
    told = answer(slow)
    assert told.startswith(b"HTTP/1.1 503") and b"server_draining" in told, told
    assert silent.recv(1) == b"", "it is closed, not reset"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    for caller in (*early, *late):
        caller.close()
