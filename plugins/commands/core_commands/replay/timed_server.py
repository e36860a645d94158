"""A server that is timed on recorded requests.

Owns: the requests as streams, and their times. Never does: start a server, or compare two. Called by: `replay.side_by_side`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from core.api.errors import CoreError
from core_commands.bench.load import Outcome, Shape, send
from core_commands.client.endpoint import EndpointError, whole
from core_commands.client.events import events
from core_commands.client.host_memory import peak_bytes
from core_commands.client.http_endpoint import HttpEndpoint
from core_commands.client.refusal import ErrorObject, refusal, sentence_of
from core_commands.client.served_names import served_name
from core_commands.replay.comparison import Recorded
from core_commands.replay.servers import AT_ONCE, SEEDED, body_for
from core_commands.replay.speed import Turn

MESSAGES: Final = "/v1/messages"


class TimedServer:
    """A `Side` over HTTP, used from one event loop.

    records: the requests, by their places. pid: of the server's first process; None: it was not started here, so its memory is
    not known. forgets: whether it may be asked to forget cached prefixes: others may use a server that runs anyway.
    """

    def __init__(
        self,
        url: str,
        records: Sequence[Recorded],
        *,
        api_key: str | None = None,
        pid: int | None = None,
        forgets: bool = False,
    ) -> None:
        self._endpoint = HttpEndpoint(url, api_key)
        self._records = records
        self._pid = pid
        self._forgets = forgets
        self._model = ""

    async def open(self) -> None:
        """Ask for the name of its model. Raises EndpointError, UserError."""
        self._model = await served_name(self._endpoint, None)

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()

    async def answer(self, places: Sequence[int]) -> Turn:
        """Send these requests, up to `AT_ONCE` at once."""
        room = asyncio.Semaphore(AT_ONCE)

        async def ask(place: int) -> Outcome:
            async with room:
                return await self._ask(self._records[place])

        begin = time.perf_counter()
        outcomes = await asyncio.gather(*map(ask, places))
        seconds = time.perf_counter() - begin
        well = [(place, one) for place, one in zip(places, outcomes, strict=True) if not one.error]
        return Turn(
            seconds,
            sum(one.output_tokens for _, one in well),
            {place: one.arrivals[0] - one.sent for place, one in well},
            [one.error for one in outcomes if one.error],
        )

    async def forget(self) -> bool:
        """Have the server forget its prefixes, as `Side.forget` does."""
        if not self._forgets:
            return False
        async with self._endpoint.ask("POST", "/reset_prefix_cache") as answer:
            await whole(answer)
        self._forgets = answer.status == 200
        return self._forgets

    def peak_bytes(self) -> int | None:
        """Return the peak of its processes, as `Side.peak_bytes` does."""
        return None if self._pid is None else peak_bytes(self._pid)

    async def _ask(self, record: Recorded) -> Outcome:
        body = body_for(record, self._model) | {"stream": True}
        if record.path == MESSAGES:
            return await send_message(self._endpoint, msgspec.json.encode(body))
        if record.path in SEEDED:
            body["stream_options"] = {"include_usage": True}
        return await send(self._endpoint, Shape(record.path, {}, {}), msgspec.json.encode(body))


class _Usage(msgspec.Struct):
    output_tokens: int = 0


class _Event(msgspec.Struct):
    """An event of the Messages API; unused fields are skipped."""

    type: str = ""
    usage: _Usage | None = None
    error: ErrorObject | str | None = None


async def send_message(endpoint: HttpEndpoint, body: bytes) -> Outcome:
    """Send a streamed request of the Messages API; failures become the outcome's error, as in `bench.load.send`."""
    outcome = Outcome(sent=time.perf_counter())
    try:
        async with endpoint.ask("POST", MESSAGES, body) as answer:
            if answer.status != 200:
                raise EndpointError(await refusal(answer))
            is_whole = False
            async for event in events(answer):
                told = _decoded(event.data)
                is_whole = is_whole or told.type == "message_stop"
                if told.type == "content_block_delta" or (is_whole and not outcome.arrivals):
                    outcome.arrivals.append(event.arrived)
                if told.type == "message_delta" and told.usage is not None:
                    outcome.output_tokens = told.usage.output_tokens
            if not is_whole:
                raise EndpointError("The stream ended before the answer was whole.")
    except CoreError as error:
        outcome.error = str(error)
    outcome.ended = time.perf_counter()
    return outcome


def _decoded(data: bytes) -> _Event:
    """Decode an event. Raises EndpointError for an error in the stream, and for what is no event."""
    try:
        event = msgspec.json.decode(data, type=_Event)
    except msgspec.DecodeError as error:
        raise EndpointError(f"The server sent what is no event of an answer: {error}.") from None
    if event.error is not None:
        raise EndpointError(sentence_of(event.error))
    return event
