"""The rounds of a response whose tools this server runs: the calls, and the model again with their results.

Owns: the number of calls, the body of each further round, and its run. Never does: write items or events, or speak to a
tool server. Called by: `core_apis.responses.run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from core.api.errors import RequestError
from core_apis.answers.parsing import AnswerParser
from core_apis.answers.prompt_output import Outputs
from core_apis.context import ServingContext
from core_apis.generation import PromptRun
from core_apis.prepare.prepared import PreparedResponse
from core_apis.responses.continuing import MOST_CALLS
from core_apis.responses.hosted_calls import HostedCall
from core_apis.responses.kept_items import Continued, packed
from core_apis.responses.writer import ResponseWriter
from core_apis.tools.offered import CallResult, ToolServer
from core_apis.tools.tool_servers import ToolServers

MOST_BODY: Final = 4 << 20
"""Maximum size of a body with tools of tool servers, in bytes: it is kept while it is answered, for the next round."""


class RepeatedBody:
    """A body that is prepared again in each round.

    pieces: of the body; empty: it has no tools of tool servers. history, known: its stored items.
    """

    def __init__(self) -> None:
        self.pieces: tuple[bytes, ...] = ()
        self._stored: tuple[bytes | None, Mapping[str, Any]] = (None, {})
        self._servers: Sequence[ToolServer] = ()

    def keep(
        self,
        pieces: Sequence[bytearray],
        history: bytes | None,
        known: Mapping[str, Any],
        servers: Sequence[ToolServer],
    ) -> None:
        """Keep a body. Raises RequestError if it is too large."""
        size = sum(map(len, pieces))
        if size > MOST_BODY:
            raise RequestError(
                f"The body has {size} bytes; with tools of type 'mcp' at most {MOST_BODY} are read. Send less input.",
                status=413,
                code="body_too_large",
            )
        self.pieces = tuple(map(bytes, pieces))
        self._stored = history, known
        self._servers = servers

    def packed(self, continued: Continued) -> bytes:
        """Return what precedes the body in a further round. The output of many calls takes a while: call it in a thread."""
        return packed(*self._stored, self._servers, continued)


class HostedRounds:
    """The rounds of one response. run: the first one."""

    def __init__(
        self,
        context: ServingContext,
        servers: ToolServers,
        prepared: PreparedResponse,
        run: PromptRun,
        body: RepeatedBody,
    ) -> None:
        self._context = context
        self._servers = servers
        self._run = run
        self._body = body
        self._most_calls: int = prepared.body.max_tool_calls or MOST_CALLS
        self._most_tokens = prepared.body.max_output_tokens
        self._num_calls = 0

    def start(self, calls: Sequence[HostedCall]) -> dict[str, asyncio.Future[CallResult]]:
        """Start calls, all at once; return their results by the id of each. Calls beyond the limit have an error."""
        results: dict[str, asyncio.Future[CallResult]] = {}
        for call in calls:
            self._num_calls += 1
            results[call.id] = asyncio.ensure_future(self._result(call, runs=self._num_calls <= self._most_calls))
        return results

    async def next(self, writer: ResponseWriter) -> Outputs | None:
        """Return the outputs of the next run; None: no token is left for it. Raises RequestError."""
        left = None if self._most_tokens is None else self._most_tokens - writer.num_output_tokens
        if left is not None and left <= 0:
            return None
        more = self._num_calls < self._most_calls
        before = await asyncio.to_thread(partial(self._before, writer, left, calls=more))
        prepared: PreparedResponse = await self._context.preparer.prepare(
            "response", before, *map(bytearray, self._body.pieces)
        )
        first = self._run
        run = PromptRun(self._context, prepared.chat, first.answer_id, first.user, first.arrival)
        run.key = first.key
        run.again = True  # the response was accepted with its first round, and is not refused for want of room
        writer.next_round(AnswerParser(prepared.chat))
        return run.outputs

    def _before(self, writer: ResponseWriter, left: int | None, *, calls: bool) -> bytes:
        items: list[Any] = msgspec.to_builtins(writer.response.output)
        return self._body.packed(Continued(items, calls, left))

    async def _result(self, call: HostedCall, *, runs: bool) -> CallResult:
        if not runs:
            return CallResult(error=f"Not run: the response has had its {self._most_calls} calls (max_tool_calls).")
        return await self._servers.call(call.tool.namespace or "", call.tool.name, call.arguments)
