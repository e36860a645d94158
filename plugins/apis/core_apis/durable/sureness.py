"""Number of events of a stream that are known to equal those that earlier servers sent.

Owns: `Sureness`. Never does: compare events. Called by: restored streams and responses, and the routes.

Events of an earlier server are written again from the journal's records. Events beyond these may divide the text
differently, so a client that has read such an event cannot continue after it.
"""

from __future__ import annotations

import asyncio

from core.api.errors import RequestError
from core_apis.durable.event_ids import EventId
from core_apis.durable.recorder import RequestRecorder


class Sureness:
    """The certain events of one stream. num_events: their number; is_final: it will not grow."""

    def __init__(self, num_events: int = 0, *, is_final: bool = False) -> None:
        self.num_events = num_events
        self._is_final = is_final
        self._wake = asyncio.Event()

    def note(self, recorder: RequestRecorder, num_events: int) -> None:
        """Note that `num_events` events have been written in this server, repeated or new."""
        if self._is_final:
            return
        if recorder.repeats:
            self.num_events = num_events
            self._wake.set()
        else:
            self.settle()

    def settle(self) -> None:
        """Note that all events of earlier servers have been written again."""
        self._is_final = True
        self._wake.set()

    async def covers(self, number: int) -> bool:
        """Whether the event with this number is certain; waits until that is known."""
        while number >= self.num_events and not self._is_final:
            self._wake.clear()
            await self._wake.wait()
        return number < self.num_events


async def first_after(last: EventId, answer_id: str, epoch: int, sure: Sureness) -> int:
    """Return the number of the first event after `last`, the last one that a client has read. Raises RequestError (400,
    409).

    answer_id: of the requested stream. epoch: the journal's current epoch.
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
