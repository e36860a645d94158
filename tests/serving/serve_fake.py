"""Runs `core.serving.launch.serve` over the fake engine: `serve_fake.py PORT [SECONDS_A_TOKEN [SECONDS_OF_START]]`.

Prints whether torch was imported when the server ends; the exit code is that of `core serve`.
"""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

from core.api.config import ServerConfig
from core.api.errors import UserError
from core.engine.async_engine import AsyncEngine
from core.serving.launch import serve
from tests.serving import fake_engine
from tests.serving.fake_engine import make_engine


async def start(resolution: object, process: None) -> AsyncEngine:
    print("starting", flush=True)
    await asyncio.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 0)
    return make_engine()


async def engine_config() -> object:
    return make_engine().config


if len(sys.argv) > 2:
    fake_engine.SLOW_SECONDS = float(sys.argv[2])
AsyncEngine.start = staticmethod(start)  # type: ignore[method-assign,assignment]
resolution = SimpleNamespace(engine=asyncio.run(engine_config()), server=ServerConfig(port=int(sys.argv[1])))
try:
    code = serve(resolution)  # type: ignore[arg-type]
except UserError as error:
    print(error, file=sys.stderr)
    code = 2
print("torch" in sys.modules, flush=True)
sys.exit(code)
