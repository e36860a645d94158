"""Where a client reads on: of an event's id in a header, or of a name and a number in the path.

Owns: these two ways for conversations and completions. Never does: keep streams. Called by: their routes.
"""

from __future__ import annotations

from fastapi import Request, Response

from core.api.errors import RequestError
from core.journal.records import EntryKind
from core.serving.context import context_of, tenant_of
from core.serving.durable.event_ids import LARGEST, last_event_id
from core.serving.durable.streams import DurableStreams
from core.serving.event_stream import EventStream


async def resumed(request: Request, kind: EntryKind) -> Response | None:
    """The rest of the stream whose last event a client names; None when it names none, or nothing is kept at all."""
    streams = context_of(request).durable
    last = None if streams is None else last_event_id(request)
    if streams is None or last is None:
        return None
    events = await streams.after(tenant_of(request), kind, last.answer_id, last)
    return EventStream(events, done=b"")


async def read_again(request: Request, kind: EntryKind, answer_id: str) -> Response:
    """The events of a stream behind `starting_after` or the header's event; all of them without either. Raises RequestError."""
    streams = _kept(request)
    last = last_event_id(request)
    if last is not None:
        return EventStream(await streams.after(tenant_of(request), kind, answer_id, last), done=b"")
    stream = streams.find(tenant_of(request), kind, answer_id)
    start = 0 if stream.is_broken else number_of(request, "starting_after", -1, least=-1) + 1
    return EventStream(stream.follow(start), done=b"")


def number_of(request: Request, name: str, default: int, *, least: int, most: int = LARGEST) -> int:
    """A number of the query. Raises RequestError."""
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
