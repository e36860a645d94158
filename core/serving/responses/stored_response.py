"""One response that is kept, with the items of its input.

Owns: what is kept of it while it runs, and what once it has ended. Never does: know others, or limits. Called by: the store,
which keeps it, and the run, which makes it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec

from core.journal.journal import EntryLog
from core.serving.durable.sureness import Sureness
from core.serving.protocol.response_objects import ResponseObject
from core.serving.responses.conversation import Item
from core.serving.responses.event_log import EventLog

Tenant = int | None
"""The number of an API key; None where there are no keys."""

ENTRY_BYTES = 2000
ID_BYTES = 200
"""About as much as a response, and an id of an item, take besides their texts."""

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False)
class StoredResponse:
    """One of them.

    response: as it is now, until it has ended.
    previous: the id of the response that it builds on.
    items:    those of its own input, as a list in JSON; those of earlier responses are theirs.
    item_ids: of these, and later of its output.
    background: whether it can be cancelled.
    log:      of a stream.
    task:     runs it in the background, for as long as it runs.
    journaled: its records, where it outlives the server.
    sure:     which events of earlier servers are the same now.
    is_suspended: it has not ended, but a later server goes on with it.
    final:    the response as JSON, once it has ended. output: its items as a list in JSON.
    num_bytes, used: what the store knows of it: bytes that are counted, and when it was last used.
    """

    id: str
    tenant: Tenant
    response: ResponseObject | None
    previous: str | None
    items: bytes
    item_ids: tuple[str, ...]
    background: bool
    log: EventLog | None = None
    task: asyncio.Task[None] | None = None
    journaled: EntryLog | None = None
    sure: Sureness = field(default_factory=Sureness)
    is_suspended: bool = False
    final: bytes = b""
    output: bytes = b"[]"
    num_bytes: int = 0
    used: float = 0.0

    @classmethod
    def of(cls, tenant: Tenant, response: ResponseObject, items: list[Item], log: EventLog | None) -> StoredResponse:
        """A response with the items of its input."""
        ids = tuple(str(item["id"]) for item in items)
        previous = response.previous_response_id
        return cls(response.id, tenant, response, previous, _encode(items), ids, response.background, log)

    def finish(self) -> None:
        """Keep the response as it is now: it has ended."""
        response = self.response
        assert response is not None, "a response ends once"
        self.final = _encode(response)
        self.output = _encode(response.output)
        self.item_ids += tuple(item.id for item in response.output)
        self.response = self.task = None
        self.sure.settle()

    def cancel(self) -> None:
        """End what runs of it, if anything does."""
        if self.task is not None:
            self.task.cancel()

    def body(self) -> bytes:
        """The response as JSON, as it is now."""
        return self.final if self.response is None else _encode(self.response)

    def measure(self) -> int:
        """Bytes that it takes."""
        texts = len(self.items) + len(self.final) + len(self.output)
        log = 0 if self.log is None else self.log.num_bytes
        return ENTRY_BYTES + ID_BYTES * len(self.item_ids) + texts + log
