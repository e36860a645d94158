"""A crowd does not keep a probe waiting until everybody has been served."""

import asyncio
import socket
from typing import Any

import uvloop

from core_apis.app import create_app
from core_apis.server.http_server import HttpServer
from core_apis.server.sockets import bind
from core_apis.server.turnstile import Turnstile
from core_config.served.server_config import ServerConfig
from tests.apis.fake_engine import make_engine
from tests.apis.test_api_keys import call


async def test_a_probe_overtakes_a_crowd_of_requests() -> None:
    begun: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])

    turnstile = Turnstile(app)
    crowd = [asyncio.ensure_future(call(turnstile, "POST", "/v1/completions")) for _ in range(200)]
    left = asyncio.ensure_future(call(turnstile, "POST", "/v1/left"))
    probe = asyncio.ensure_future(call(turnstile, "GET", "/health"))
    await asyncio.sleep(0)
    left.cancel()
    await probe
    assert begun.index("/health") < 20
    await asyncio.gather(*crowd)
    assert begun.count("/v1/completions") == 200 and "/v1/left" not in begun
    await call(turnstile, "POST", "/v1/later")
    assert begun[-1] == "/v1/later"


def test_many_connections_are_taken_in_few_turns_of_the_loop() -> None:
    async def main() -> tuple[int, int]:
        engine = make_engine()
        config = ServerConfig(uvicorn_log_level="warning")
        server = HttpServer(create_app(engine, config, engine.model_config), config)
        listener = bind("127.0.0.1", 0)
        listener.listen(256)
        crowd = [socket.create_connection(listener.getsockname()) for _ in range(200)]
        serving = asyncio.ensure_future(server.serve([listener]))
        turns = 0
        while len(server.clients) < 200 and turns < 100_000:
            turns += bool(len(server.clients))
            await asyncio.sleep(0)
        for connection in crowd:
            connection.close()
        server.should_exit = True
        await serving
        await engine.close()
        return turns, listener.fileno()

    turns, listener = uvloop.run(main())
    assert turns < 50
    assert listener == -1  # closed, and nobody else listens
