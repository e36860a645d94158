"""Server-sent events as an ASGI response.

Owns: sending events, ending the stream on errors and when the client disconnects. Never does: make events. Called by:
the completion routes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from core.api.errors import CoreError
from core_apis.errors import ClientGone, error_event
from core_apis.server.disconnect import until_disconnect

logger = logging.getLogger("core_apis")

DONE = b"data: [DONE]\n\n"
PULSE = b": keep-alive\n\n"
"""A comment, which readers of events skip."""


def keep_alive_interval(scope: Scope) -> float:
    """Return the seconds of silence after which a comment is sent; 0: none is."""
    app = scope.get("app")
    context = None if app is None else getattr(app.state, "context", None)
    return 0.0 if context is None else float(context.server.sse_keep_alive_interval)


class Pulsing:
    """Sending of one stream that says something in silence.

    send: the connection's. interval: seconds of silence after which a comment is sent; 0: none is.
    """

    def __init__(self, send: Send, interval: float) -> None:
        self._send = send
        self._interval = interval
        self._task: asyncio.Task[None] | None = None
        self._last = 0.0

    async def __aenter__(self) -> Send:
        if self._interval <= 0:
            return self._send
        self._last = time.monotonic()
        self._task = asyncio.create_task(self._pulse())
        return self._noted

    async def __aexit__(self, *error: object) -> None:
        await self.end()

    async def end(self) -> None:
        """Send no more comments; the last event follows, or the connection is gone."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _noted(self, message: Message) -> None:
        self._last = time.monotonic()
        if not message.get("more_body", True):
            await self.end()
        await self._send(message)

    async def _pulse(self) -> None:
        while True:
            silent = time.monotonic() - self._last
            if silent >= self._interval:
                self._last = time.monotonic()
                await self._send({"type": "http.response.body", "body": PULSE, "more_body": True})
                silent = 0.0
            await asyncio.sleep(self._interval - silent)


class EventStream(Response):
    """A response that sends `events` (complete blocks such as `data: ...`) as they come, then `done`.

    done:    the end of a successful stream.
    failed:  converts an exception into the last event of a failed one.
    headers: additional ones.

    However the stream ends, `events` is closed.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        done: bytes = DONE,
        failed: Callable[[Exception], bytes] = error_event,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self.events = events
        self.done = done
        self.failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything; return when the stream has ended or the client has disconnected."""
        try:
            await until_disconnect(receive, self._send_all(Pulsing(send, keep_alive_interval(scope))))
        except ClientGone:
            logger.debug("A client closed its stream early.")
        finally:
            await self.events.aclose()

    async def _send_all(self, pulsing: Pulsing) -> None:
        async with pulsing as send:
            await self._send_each(send)

    async def _send_each(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for event in self.events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            last = self.done
        except CoreError as error:
            last = self.failed(error)
        except Exception as error:
            logger.exception("A stream failed.")
            last = self.failed(error)
        await send({"type": "http.response.body", "body": last, "more_body": False})
