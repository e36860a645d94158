"""`core serve` over the fake engine:
`serve_fake.py PORT [SECONDS_A_TOKEN [SECONDS_OF_START [SECONDS_OF_RESOLVING [SHUTDOWN_TIMEOUT]]]]`.

Prints whether torch was imported when the server ends; the exit code is that of `core serve`.
"""

import asyncio
import sys
import time
from types import SimpleNamespace

from core.commands.main import main
from core_commands.cli import serve as command
from core_config.served.server_config import ServerConfig
from core_frontend.async_engine import AsyncEngine
from core_supervision.child import EngineProcess
from tests.apis import fake_engine
from tests.apis.fake_engine import make_engine


async def start(resolution: object, process: object) -> AsyncEngine:
    print("starting", flush=True)
    await asyncio.sleep(seconds(3))
    engine = make_engine()
    engine.grammars.warm = warm  # type: ignore[method-assign]
    return engine


async def engine_config() -> object:
    return make_engine().config


def resolve(words: list[str]) -> object:
    if seconds(4):
        print("resolving", flush=True)
        end = time.monotonic() + seconds(4)
        while time.monotonic() < end:
            time.sleep(0.01)  # a signal that comes just before a long sleep would not end it
    patience = seconds(5) if len(sys.argv) > 5 else ServerConfig().shutdown_timeout
    server = ServerConfig(port=int(sys.argv[1]), shutdown_timeout=patience)
    return SimpleNamespace(engine=asyncio.run(engine_config()), server=server)


def warm() -> None:
    print("warming", flush=True)


def discard() -> None:
    print("torch" in sys.modules, flush=True)


def seconds(place: int) -> float:
    return float(sys.argv[place]) if len(sys.argv) > place else 0.0


if len(sys.argv) > 2:
    fake_engine.SLOW_SECONDS = seconds(2)
AsyncEngine.start = staticmethod(start)  # type: ignore[method-assign,assignment]
EngineProcess.spawn = lambda: SimpleNamespace(discard=discard, configured=asyncio.Event())  # type: ignore[method-assign,assignment,return-value]
command.resolve_words = resolve  # type: ignore[assignment]
sys.exit(main(["serve"]))
