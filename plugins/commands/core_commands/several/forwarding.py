"""Requests on their way to a model's server, and answers on their way back.

Owns: which headers are passed on, and the end of a request whose client has gone. Never does: choose the server. Called
by: `core_commands.several.application`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from core.api.errors import RequestError
from core_apis.errors import error_event, error_response
from core_commands.client.endpoint import EndpointError
from core_commands.several.keeper import Keeper

logger = logging.getLogger(__name__)

OF_ONE_CONNECTION = frozenset(
    (
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-model",
    )
)
"""Headers of one connection (RFC 9110, 7.6.1), and those that are read here."""


class Forwarded(Response):
    """The answer of a model's server, sent on as it comes.

    name: of the model. path: with its query. keep_alive: as of `Keeper.using`. held: closed once the body is sent on, or the
    request ends before that. place: of the request among those of its key, until its model's server counts it.
    """

    def __init__(
        self,
        keeper: Keeper,
        request: Request,
        name: str,
        path: str,
        body: bytes,
        keep_alive: float | None,
        held: ExitStack,
        place: AbstractContextManager[Any],
    ) -> None:
        super().__init__()
        self._keeper = keeper
        self._request = request
        self._name = name
        self._path = path
        self._body = body
        self._keep_alive = keep_alive
        self._held = held
        self._place = place
        self._is_begun = self._is_stream = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the request on, and its answer back. It ends with its client."""
        answering = asyncio.ensure_future(self._answer(scope, send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
            self._held.close()

    async def _answer(self, scope: Scope, send: Send) -> None:
        try:
            async with self._keeper.using(self._name, self._keep_alive, self._place) as child:
                method = self._request.method
                headers = passed_on(self._request.headers.items())
                async with child.endpoint.ask(method, self._path, self._body, headers) as answer:
                    self._body = b""
                    self._held.close()
                    raw = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in answer.headers.items()]
                    kept = [pair for pair in raw if pair[0].decode() not in OF_ONE_CONNECTION]
                    length = [pair for pair in raw if pair[0] == b"content-length"]
                    self._is_begun = True
                    self._is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
                    await send({"type": "http.response.start", "status": answer.status, "headers": [*kept, *length]})
                    async for part in answer.parts():
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
        except RequestError as error:
            await error_response(error, scope=scope)(scope, self._request.receive, send)
        except EndpointError as error:
            logger.warning("An answer of model '%s' broke off: %s", self._name, error)
            await self._break_off(scope, send)

    async def _break_off(self, scope: Scope, send: Send) -> None:
        """Tell the client that the model's server ended in the middle of its request."""
        error = RequestError(
            f"The server of model '{self._name}' ended before this answer was whole. Ask again in 1 s.",
            status=503,
            code="model_failed",
            retry_after=1,
        )
        if not self._is_begun:
            await error_response(error, scope=scope)(scope, self._request.receive, send)
        elif self._is_stream:
            await send({"type": "http.response.body", "body": error_event(error), "more_body": False})
        # else the answer stays without an end: the HTTP server closes the connection, so nobody takes a part for the whole


def passed_on(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers of a request that its model's server gets."""
    return {name: value for name, value in headers if name not in OF_ONE_CONNECTION}


async def _gone(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
