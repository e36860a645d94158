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


def first_after(last: EventId, answer_id: str, epoch: int, num_sure: int) -> int:
    """The number of the first event behind `last`, the last one that a client has read. Raises RequestError (400, 409).

    answer_id: of the stream that is asked for. epoch: of the journal now.
    num_sure:  events of earlier servers that are known to be the same now.
    """
    if last.answer_id != answer_id:
        raise RequestError(
            f"The header Last-Event-ID names an event of '{last.answer_id}', but the path names '{answer_id}'.",
            param="Last-Event-ID",
        )
    if last.epoch != epoch and last.number >= num_sure:
        raise RequestError(
            f"The event {last.number} of '{answer_id}' was sent before it was on disk, and was lost with an earlier server; "
            f"{num_sure} events are known. Read the stream again from its beginning.",
            param="Last-Event-ID",
            status=409,
            code="event_lost",
        )
    return last.number + 1


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text[:12]) < LARGEST and len(text) < 12
