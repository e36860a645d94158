"""What a response that outlives the server leaves behind while it runs.

Owns: `ResponseTrail`: the ids of its events, and how far they are sure. Never does: run it. Called by: `ResponseRun`.
"""

from __future__ import annotations

from core_apis.durable.event_ids import with_ids
from core_apis.durable.recorder import RequestRecorder
from core_apis.journal.journal import Journal
from core_apis.responses.stored_response import StoredResponse


class ResponseTrail:
    """Of one response; a `core_apis.responses.run.Trail`."""

    def __init__(self, journal: Journal, recorder: RequestRecorder, entry: StoredResponse) -> None:
        self._journal = journal
        self._recorder = recorder
        self._entry = entry
        self._num_events = 0

    async def written(self) -> None:
        """As in `Trail`."""
        await self._journal.written()

    def noted(self, events: list[bytes]) -> list[bytes]:
        """As in `Trail`."""
        noted = with_ids(self._entry.id, self._journal.epoch, self._num_events, events)
        self._num_events += len(events)
        self._entry.sure.note(self._recorder, self._num_events)
        return noted
