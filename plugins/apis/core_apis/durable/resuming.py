"""Resuming of a kept stream: after the event that the client names in a header, or after a number in the query.

Owns: the answer to a GET of a stream. Never does: keep streams. Called by: the routes of streams that may be kept.
"""

from __future__ import annotations

from fastapi import Request, Response

from core.api.errors import RequestError
from core_apis.answers.event_stream import EventStream
from core_apis.context import context_of, tenant_of
from core_apis.durable.event_ids import LARGEST, last_event_id
from core_apis.durable.streams import DurableStreams


async def read_again(request: Request, kind: str, answer_id: str) -> Response:
    """Return the events of a stream after `starting_after` or the header's event; all of them without either.

    Raises RequestError.
    """
    streams = _kept(request)
    last = last_event_id(request)
    if last is not None:
        return EventStream(await streams.after(tenant_of(request), kind, answer_id, last), done=b"")
    stream = streams.find(tenant_of(request), kind, answer_id)
    start = 0 if stream.is_broken else number_of(request, "starting_after", -1, least=-1) + 1
    return EventStream(stream.follow(start), done=b"")


def number_of(request: Request, name: str, default: int, *, least: int, most: int = LARGEST) -> int:
    """Return an integer of the query, between `least` and `most`. Raises RequestError."""
    given = request.query_params.get(name)
    if given is None:
        return default
    number = int(given) if given.isascii() and given.isdigit() and len(given) < 12 else least - 1
    if not least <= number <= most:
        raise RequestError(f"{name} is {given[:100]!r}; expected a number from {max(least, 0)} to {most}.", param=name)
    return number


def _kept(request: Request) -> DurableStreams:
    streams = context_of(request).durable
    if streams is None:
        raise RequestError(
            "This server keeps no streams; start it with --request-journal DIR.", status=404, code="stream_not_found"
        )
    return streams
