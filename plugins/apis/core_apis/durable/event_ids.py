"""The ids of events, by which a client says how far it has read.

Owns: their form, and reading them from a request. Never does: look anything up. Called by: streams, runs and routes.

An id is ANSWER:EPOCH:NUMBER: the id of the answer, the journal's epoch in which the event was sent, and the number of the event
within the stream, from 0 on. Every number has one event, but only the epoch tells whether it was sent by this server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import Request

from core.api.errors import RequestError

HEADER = "last-event-id"
LONGEST = 400
"""Characters."""
LARGEST = 2**31


@dataclass(frozen=True, slots=True)
class EventId:
    """One event. answer_id: of the answer that it is part of."""

    answer_id: str
    epoch: int
    number: int


def with_ids(answer_id: str, epoch: int, first: int, events: Iterable[bytes]) -> list[bytes]:
    """Events with a line for their id. first: number of the first one."""
    prefix = f"id: {answer_id}:{epoch}:".encode()
    return [b"%s%d\n%s" % (prefix, number, event) for number, event in enumerate(events, start=first)]


def last_event_id(request: Request) -> EventId | None:
    """The last event that the client of a request has read, if it says so. Raises RequestError."""
    given = request.headers.get(HEADER)
    if not given:
        return None
    answer_id, _, rest = given.rpartition(":")
    answer_id, _, epoch = answer_id.rpartition(":")
    numbers = (epoch, rest)
    if not answer_id or len(given) > LONGEST or not all(_is_number(each) for each in numbers):
        raise RequestError(
            f"The header Last-Event-ID is {given[:100]!r}; expected the id of an event as it was sent, or no such header.",
            param="Last-Event-ID",
        )
    return EventId(answer_id, int(epoch), int(rest))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text[:12]) < LARGEST and len(text) < 12
