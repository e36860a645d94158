"""How many events of a stream are known to be those that earlier servers sent.

Owns: `Sureness`. Never does: compare events. Called by: streams and responses that were taken up again, and the routes.

An event of an earlier server is written again from what the journal has of it. Events beyond that may differ in how text is
divided among them, so who has read such an event cannot read on behind it.
"""

from __future__ import annotations

import asyncio

from core.api.errors import RequestError
from core_apis.durable.event_ids import EventId
from core_apis.durable.recorder import RequestRecorder


class Sureness:
    """Of one stream. num_events: that are sure; is_final: it will not grow."""

    def __init__(self, num_events: int = 0, *, is_final: bool = False) -> None:
        self.num_events = num_events
        self._is_final = is_final
        self._wake = asyncio.Event()

    def note(self, recorder: RequestRecorder, num_events: int) -> None:
        """So many events have been written again, or anew."""
        if self._is_final:
            return
        if recorder.repeats:
            self.num_events = num_events
            self._wake.set()
        else:
            self.settle()

    def settle(self) -> None:
        """All events of earlier servers have been written again."""
        self._is_final = True
        self._wake.set()

    async def covers(self, number: int) -> bool:
        """Whether the event with this number is sure, as soon as that is known."""
        while number >= self.num_events and not self._is_final:
            self._wake.clear()
            await self._wake.wait()
        return number < self.num_events


async def first_after(last: EventId, answer_id: str, epoch: int, sure: Sureness) -> int:
    """The number of the first event behind `last`, the last one that a client has read. Raises RequestError (400, 409).

    answer_id: of the stream that is asked for. epoch: of the journal now.
    """
    if last.answer_id != answer_id:
        raise RequestError(
            f"The header Last-Event-ID names an event of '{last.answer_id}', but the path names '{answer_id}'.",
            param="Last-Event-ID",
        )
    if last.epoch != epoch and not await sure.covers(last.number):
        raise RequestError(
            f"The event {last.number} of '{answer_id}' was sent before it was on disk, and was lost with an earlier server; "
            f"{sure.num_events} events are known. Read the stream again from its beginning.",
            param="Last-Event-ID",
            status=409,
            code="event_lost",
        )
    return last.number + 1
