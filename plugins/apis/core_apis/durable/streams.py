"""The streams of one server that outlive their connections.

Owns: `DurableStreams`: the streams of each tenant, their names in the journal, and how long they are kept. Never does:
answer requests, or write events. Called by: the routes, and the code that starts and ends the server.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from core.api.config import ModelConfig
from core.api.errors import RequestError
from core_apis.callers.tenant import Tenant
from core_apis.durable.event_ids import EventId
from core_apis.durable.key_digests import KeyDigests
from core_apis.durable.origin import origin_of
from core_apis.durable.recorder import RequestRecorder
from core_apis.durable.stream import DurableStream, Events
from core_apis.journal.journal import EntryLog, Journal, now
from core_apis.journal.reader import Entry
from core_apis.journal.records import Accepted, Ended, Frame, accepted_frame
from core_apis.prepare.prepared import PreparedChat
from core_config.served.server_config import JournalSettings, ServerConfig


@dataclass(frozen=True, slots=True)
class Job:
    """A request to be kept. created, arrived: seconds since the epoch; see `Accepted`."""

    kind: str
    answer_id: str
    tenant: Tenant
    created: int
    arrived: float
    user: str


class DurableStreams:
    """The kept streams of all tenants, for one server.

    journal: open. key_digests: of the server's tenants. numerics: of the engine.
    weight_version: returns the version of the current weights; empty for those that the engine was started with.
    """

    def __init__(
        self,
        journal: Journal,
        settings: JournalSettings,
        key_digests: KeyDigests,
        model: ModelConfig,
        numerics: str,
        weight_version: Callable[[], str],
    ) -> None:
        self.journal = journal
        self.settings = settings
        self.key_digests = key_digests
        self.origin = origin_of(model, numerics)
        self._weight_version = weight_version
        self._streams: dict[tuple[Tenant, str], DurableStream] = {}
        self._aside: list[tuple[float, int]] = []

    async def accept(self, job: Job, prepared: msgspec.Struct, adapter: str = "") -> RequestRecorder:
        """Keep a request from now on. Raises RequestError (503) if it cannot be kept. adapter: digest of its adapter.

        Its calls get ids that the next server will give them as well.
        """
        self._expire()
        self.journal.check()
        chat = getattr(prepared, "chat", prepared)
        if isinstance(chat, PreparedChat):
            chat.id_seed = secrets.randbits(63)
        accepted = Accepted(
            kind=job.kind,
            id=job.answer_id,
            tenant=self.key_digests.digest(job.tenant),
            created=job.created,
            arrived=job.arrived,
            user=job.user,
            origin=self.origin + self._weight_version(),  # the next server begins with the weights of the files
            body=b"",
            adapter=adapter,
        )
        frame = await asyncio.to_thread(_first_frame, self.journal.next_number(), accepted, prepared)
        return RequestRecorder(self.journal.accept(frame))

    def run(
        self, kind: str, answer_id: str, tenant: Tenant, recorder: RequestRecorder, events: Events
    ) -> DurableStream:
        """Start a stream. events: blocks without ids."""
        stream = DurableStream(kind, answer_id, tenant, self.key_digests.digest(tenant), recorder.log)
        stream.start(self.journal, recorder, events, self.settings.patience_s, lambda: self._forget(stream))
        self._add(stream)
        return stream

    def restore(self, entry: Entry, log: EntryLog) -> None:
        """Restore a stream that ended in an earlier server."""
        ended = entry.ended
        assert ended is not None, "it has ended"
        self._add(DurableStream.restored(ended, self.key_digests.tenant(ended.tenant), log))

    def set_aside(self, entry: Entry) -> None:
        """Keep the entry of a key that this server does not have until it expires: the key may come back."""
        owner = entry.ended or entry.accepted
        assert owner is not None
        begin = owner.at if isinstance(owner, Ended) else owner.arrived
        self._aside.append((begin, entry.number))
        self._expire()

    def find(self, tenant: Tenant, kind: str, answer_id: str) -> DurableStream:
        """Return a stream of this tenant. Raises RequestError (404)."""
        self._expire()
        stream = self._streams.get((tenant, answer_id))
        if stream is None or stream.kind != kind:
            raise RequestError(
                f"There is no stream '{answer_id}': it was never kept, nobody read it for longer than "
                f"{self.settings.patience_s:g} s (--request-journal-patience), or it ended more than "
                f"{self.settings.lifetime_s:g} s ago (--request-journal-lifetime). Send the request again.",
                param="Last-Event-ID",
                status=404,
                code="stream_not_found",
            )
        return stream

    async def after(self, tenant: Tenant, kind: str, answer_id: str, last: EventId) -> Events:
        """Return the events after the last one that a client has read. Raises RequestError (400, 404, 409)."""
        stream = self.find(tenant, kind, answer_id)
        start = await stream.after(last, self.journal.epoch)
        return stream.follow(start)

    async def suspend(self) -> None:
        """Stop all streams without end records, so that the next server continues them."""
        streams = list(self._streams.values())
        for stream in streams:
            stream.suspend()
        for stream in streams:
            await stream.stopped()

    def _add(self, stream: DurableStream) -> None:
        self._expire()
        self._streams[stream.tenant, stream.id] = stream

    def _forget(self, stream: DurableStream) -> None:
        stream.log.dropped()
        key = (stream.tenant, stream.id)
        if self._streams.get(key) is stream:
            del self._streams[key]

    def _expire(self) -> None:
        """Forget streams that ended too long ago, or whose journal entry made room for newer ones."""
        oldest = now() - self.settings.lifetime_s
        for begin, number in self._aside:
            if begin < oldest:
                self.journal.drop(number)
        self._aside = [entry for entry in self._aside if entry[0] >= oldest]
        for stream in list(self._streams.values()):
            if stream.ended_at is not None and (stream.ended_at < oldest or not stream.log.is_kept):
                self._forget(stream)


def _first_frame(number: int, accepted: Accepted, prepared: msgspec.Struct) -> Frame:
    """Return the first record of an entry. Runs in a thread, because a client's prompt may be many MB."""
    body = msgspec.msgpack.encode(prepared)
    return accepted_frame(number, msgspec.structs.replace(accepted, body=body))


def durable_streams(
    journal: Journal | None,
    server: ServerConfig,
    model: ModelConfig,
    numerics: str,
    weight_version: Callable[[], str] = str,
) -> DurableStreams | None:
    """Return the streams of a server with an open journal, and start writing to it. See `DurableStreams`."""
    if journal is None or server.journal is None:
        return None
    journal.start()
    digests = KeyDigests(journal.salt, server.keys, needs_key=bool(server.api_keys))
    return DurableStreams(journal, server.journal, digests, model, numerics, weight_version)
