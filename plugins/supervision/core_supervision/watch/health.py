"""Checks that a live engine makes progress.

Owns: `check_silence`, `check_pause`. Never does: decide what follows. Called by: `AsyncEngine`.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any, Protocol

from core.api.errors import EngineStalledError
from core_supervision.restart_log import RestartLog

LISTEN_S = 0.25
"""Seconds to wait once more before an engine counts as unhealthy, because this process may have been delayed."""


class Listener(Protocol):
    """A client of one engine, or of several."""

    @property
    def silence_s(self) -> float:
        """Return the seconds for which an answer has been due."""
        ...

    def ping(self) -> asyncio.Future[Any]:
        """Ask for a sign of life. Raises EngineDeadError."""
        ...


async def check_silence(client: Listener, limit_s: float, num_waiting: int) -> None:
    """Ping the engine, without waiting for the answer, and check how long it has owed one.

    limit_s: limit of the silence in seconds.
    num_waiting: number of live requests.

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
    """Check how long requests have waited for another engine.

    limit_s: limit of the wait in seconds.

    Raises EngineStalledError when they have waited longer.
    """
    if restarts.paused_s > limit_s:
        raise EngineStalledError(
            f"The engine died, and for {restarts.paused_s:.0f} s no other runs in its place; more than {limit_s:g} s count as "
            "a fault (--engine-stall-timeout). The server's log says why."
        )
