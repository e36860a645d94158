"""One stored response, with the items of its input.

Owns: what is stored of it while it runs, and once it has ended. Never does: know others, or limits. Called by: the
store, which keeps it, and the run, which makes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from core_apis.callers.tenant import Tenant
from core_apis.durable.sureness import Sureness
from core_apis.journal.journal import EntryLog
from core_apis.protocol.response_objects import ResponseObject
from core_apis.responses.event_log import EventLog
from core_apis.responses.items import KeptItem

ENTRY_BYTES = 2000
ITEM_BYTES = 400
"""Approximate overhead in bytes of a response, and of an item, besides their texts."""

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False)
class StoredResponse:
    """A response in the store.

    response: in its current state, until it has ended.
    previous: the id of the response that it builds on.
    items:    those of its own input; those of earlier responses are stored there.
    background: whether it can be cancelled.
    log:      the events of a streamed response.
    task:     runs it in the background, for as long as it runs.
    journaled: its records in the journal, if it outlives the server.
    sure:     which events of earlier servers are the same now.
    is_suspended: whether it has not ended, but a later server continues it.
    final:    the response as JSON, once it has ended. output: its items.
    num_bytes, used: the store's data: counted bytes, and time of the last use.
    """

    id: str
    tenant: Tenant
    response: ResponseObject | None
    previous: str | None
    items: tuple[KeptItem, ...]
    background: bool
    log: EventLog | None = None
    task: asyncio.Task[None] | None = None
    journaled: EntryLog | None = None
    sure: Sureness = field(default_factory=Sureness)
    is_suspended: bool = False
    final: bytes = b""
    output: tuple[KeptItem, ...] = ()
    num_bytes: int = 0
    used: float = 0.0

    @classmethod
    def of(
        cls, tenant: Tenant, response: ResponseObject, items: Iterable[KeptItem], log: EventLog | None
    ) -> StoredResponse:
        """Return the entry of a response, with the items of its input."""
        previous = response.previous_response_id
        return cls(response.id, tenant, response, previous, tuple(items), response.background, log)

    def finish(self) -> None:
        """Replace the response by its final form: it has ended."""
        if not self.final:
            self.write()
        self.response = self.task = None
        self.sure.settle()

    def write(self) -> None:
        """Serialize the final form for `finish`; a long response in a thread."""
        response = self.response
        assert response is not None, "a response ends once"
        self.output = tuple(KeptItem(item.id, _encode(item)) for item in response.output)
        self.final = _encode(response)

    def cancel(self) -> None:
        """Cancel its run, if there is one."""
        if self.task is not None:
            self.task.cancel()

    def body(self) -> bytes:
        """Return the response as JSON, in its current state."""
        return self.final if self.response is None else _encode(self.response)

    def measure(self) -> int:
        """Return the bytes that it takes."""
        texts = len(self.final) + sum(len(item.data) for item in chain(self.items, self.output))
        log = 0 if self.log is None else self.log.num_bytes
        return ENTRY_BYTES + ITEM_BYTES * (len(self.items) + len(self.output)) + texts + log
