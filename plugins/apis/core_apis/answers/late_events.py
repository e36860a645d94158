"""Streams that begin before their first output.

Owns: waiting for the first output for a limited time. Never does: write events. Called by: the pipeline, for streams that say
something in silence (`--sse-keep-alive-interval`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.types import Receive

from core_apis.answers.prompt_output import Outputs, PromptOutput
from core_apis.server.disconnect import until_disconnect

Events = AsyncGenerator[bytes, None]
Writing = Callable[[PromptOutput, Outputs], Events]


async def begun_events(receive: Receive, outputs: Outputs, write: Writing, patience: float) -> Events:
    """Return the events of an answer, at the latest after `patience` seconds.

    An error that comes before raises, so that it gets an HTTP status of its own; a later one raises in the events.
    """
    first = asyncio.ensure_future(anext(outputs))
    try:
        await until_disconnect(receive, _patiently(first, patience))
        if first.done():
            return write(first.result(), outputs)
        return LateEvents(first, outputs, write)
    except BaseException:
        await _end(first, outputs)
        raise


async def _patiently(first: asyncio.Future[PromptOutput], patience: float) -> None:
    await asyncio.wait((first,), timeout=patience)


class LateEvents(AsyncGenerator[bytes, None]):
    """Events of an answer whose first output is still awaited.

    Closing them ends the wait even when nothing was read yet, which closing a plain generator would not.
    """

    def __init__(self, first: asyncio.Future[PromptOutput], outputs: Outputs, write: Writing) -> None:
        self._first = first
        self._outputs = outputs
        self._write = write
        self._events = self._each()

    async def _each(self) -> Events:
        async with aclosing(self._write(await self._first, self._outputs)) as events:
            async for event in events:
                yield event

    async def asend(self, value: None) -> bytes:
        """Return the next event."""
        return await self._events.asend(value)

    async def athrow(self, *error: Any) -> bytes:
        """Raise an error where the next event is awaited."""
        return await self._events.athrow(*error)

    async def aclose(self) -> None:
        """End the answer, also while its first output is awaited."""
        await self._events.aclose()
        await _end(self._first, self._outputs)


async def _end(first: asyncio.Future[PromptOutput], outputs: Outputs) -> None:
    """Stop waiting for the first output; close the others."""
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await outputs.aclose()
