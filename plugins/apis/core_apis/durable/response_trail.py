"""The trail of a response that outlives the server, left in the journal while it runs.

Owns: `ResponseTrail`: the ids of its events, and how many of them are certain. Never does: run it. Called by:
`ResponseRun`.
"""

from __future__ import annotations

from core_apis.durable.event_ids import with_ids
from core_apis.durable.recorder import RequestRecorder
from core_apis.journal.journal import Journal
from core_apis.responses.stored_response import StoredResponse


class ResponseTrail:
    """The trail of one response; a `core_apis.responses.run.Trail`."""

    def __init__(self, journal: Journal, recorder: RequestRecorder, entry: StoredResponse) -> None:
        self._journal = journal
        self._recorder = recorder
        self._entry = entry
        self._num_events = 0

    async def written(self) -> None:
        """Wait until the outputs so far are written to the journal, as in `Trail`."""
        await self._journal.written()

    def noted(self, events: list[bytes]) -> list[bytes]:
        """Return the events with their ids, as in `Trail`."""
        noted = with_ids(self._entry.id, self._journal.epoch, self._num_events, events)
        self._num_events += len(events)
        self._entry.sure.note(self._recorder, self._num_events)
        return noted
