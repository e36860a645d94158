"""The start of an engine by its owner.

Owns: `start_engine`, which waits for the engine and watches its process meanwhile.
Never does: spawn the process or end it. Called by: `ZmqClient.start`.
"""

from __future__ import annotations

import asyncio

from core.api.errors import EngineDeadError
from core.api.messages import EngineReady
from core.engine import wire
from core.engine.child import LAST_WORDS_S, EngineProcess
from core.engine.connection import EngineConnection


async def start_engine(
    connection: EngineConnection, process: EngineProcess, start: wire.StartEngine, timeout_s: float
) -> EngineReady:
    """Greet the new process with its configuration; returns when the engine is up.

    timeout_s: seconds until the start is given up.
    Raises what `EngineConnection.greet` raises, EngineDeadError when the process ends first or time is up.
    """
    greeting = asyncio.create_task(connection.greet(start))
    exit_ = asyncio.create_task(process.wait())
    try:
        await asyncio.wait({greeting, exit_}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if exit_.done() and not greeting.done():
            await asyncio.wait({greeting}, timeout=LAST_WORDS_S)
        if greeting.done():
            return greeting.result()
        if exit_.done():
            raise EngineDeadError(f"The engine process ended while it started: it {process.obituary()}")
        raise EngineDeadError(f"The engine was not ready after {timeout_s:g} s; it was stopped.")
    finally:
        greeting.cancel()
        exit_.cancel()
        await asyncio.gather(greeting, exit_, return_exceptions=True)
