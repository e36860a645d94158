"""Ids of events, with which a client states how far it has read.

Owns: their form, and reading them from a request. Never does: look anything up. Called by: streams, runs and routes.

An id is ANSWER:EPOCH:NUMBER: the id of the answer, the journal's epoch in which the event was sent, and the number of
the event within the stream, from 0. A number identifies the event; only the epoch says whether this server sent it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import Request

from core.api.errors import RequestError

HEADER = "last-event-id"
LONGEST = 400
"""Maximum length of an id in characters."""
LARGEST = 2**31


@dataclass(frozen=True, slots=True)
class EventId:
    """The id of one event. answer_id: of the answer that it is part of."""

    answer_id: str
    epoch: int
    number: int


def with_ids(answer_id: str, epoch: int, first: int, events: Iterable[bytes]) -> list[bytes]:
    """Return events with an `id` line each. first: number of the first one."""
    prefix = f"id: {answer_id}:{epoch}:".encode()
    return [b"%s%d\n%s" % (prefix, number, event) for number, event in enumerate(events, start=first)]


def last_event_id(request: Request) -> EventId | None:
    """Return the last event that the client has read, if the request names one. Raises RequestError."""
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
