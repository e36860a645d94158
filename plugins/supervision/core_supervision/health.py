"""Whether an engine that lives also moves.

Owns: `check_silence`, `check_pause`. Never does: decide what follows. Called by: `AsyncEngine`.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from core.api.errors import EngineStalledError
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.restart_log import RestartLog

LISTEN_S = 0.25
"""Seconds to listen once more before an engine is called unhealthy: the delay may be ours."""


async def check_silence(client: ZmqClient, limit_s: float, num_waiting: int) -> None:
    """Ask the engine for a sign of life, without waiting for it, and look for how long it has owed a word.

    limit_s: seconds that it may.
    num_waiting: requests that live.

    Raises EngineStalledError when it was silent for longer, EngineDeadError when it is gone.
    """
    sign_of_life = client.ping()
    if client.silence_s > limit_s:
        await asyncio.wait({sign_of_life}, timeout=LISTEN_S)
        client.ping()
    silence = client.silence_s
    if silence <= limit_s:
        return
    since = datetime.now().astimezone() - timedelta(seconds=silence)
    waiting = "1 request waits" if num_waiting == 1 else f"{num_waiting or 'no'} requests wait"
    raise EngineStalledError(
        f"The engine has said nothing for {silence:.0f} s, since {since.isoformat(' ', 'seconds')}; {waiting} for it. More "
        f"than {limit_s:g} s count as a fault (--engine-stall-timeout): restart the server, unless single steps of long "
        "prompts may take that long; then raise the limit."
    )


def check_pause(restarts: RestartLog, limit_s: float) -> None:
    """Look for how long requests have waited for another engine.

    limit_s: seconds that they may.

    Raises EngineStalledError when it was longer.
    """
    if restarts.paused_s > limit_s:
        raise EngineStalledError(
            f"The engine died, and for {restarts.paused_s:.0f} s no other runs in its place; more than {limit_s:g} s count as "
            "a fault (--engine-stall-timeout). The server's log says why."
        )
