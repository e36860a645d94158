"""Server-sent events as an ASGI response.

Owns: sending events, ending the stream on errors and when the client disconnects. Never does: make events. Called by:
the completion routes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping

from fastapi import Response
from starlette.types import Receive, Scope, Send

from core.api.errors import CoreError
from core_apis.errors import ClientGone, error_event
from core_apis.server.disconnect import until_disconnect

logger = logging.getLogger("core_apis")

DONE = b"data: [DONE]\n\n"


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
            await until_disconnect(receive, self._send_all(send))
        except ClientGone:
            logger.debug("A client closed its stream early.")
        finally:
            await self.events.aclose()

    async def _send_all(self, send: Send) -> None:
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
