"""Detection of clients that disconnect.

Owns: waiting for work and for the client at the same time. Never does: abort requests itself; it cancels the work,
whose iterators then notify the engine. Called by: routes and event streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from core_apis.errors import ClientGone

T = TypeVar("T")


async def waited_for(mode: str, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`.

    With mode `wait`, `work` may take as long as requests do, so it is cancelled when the client disconnects.
    """
    return await until_disconnect(receive, work) if mode == "wait" else await work


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancel `work` and raise ClientGone."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone("The client closed the connection.")
    finally:
        await _cancel(working)
        await _cancel(watching)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[Any]) -> None:
    if task.done():
        return
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
