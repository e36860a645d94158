"""Restoring of journal entries that an earlier server left.

Owns: which entries continue, which are only shown, and which cannot continue and report why. Never does: run or write
answers itself. Called by: the starter of the server, once, before requests come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

import msgspec

from core.api.errors import UNREADABLE, RequestError
from core_apis.context import ServingContext
from core_apis.durable.kept_responses import restored_response
from core_apis.durable.pipeline import RecordedRun
from core_apis.durable.recorder import RequestRecorder
from core_apis.durable.stream import Events
from core_apis.durable.streams import DurableStreams
from core_apis.errors import GenerationError
from core_apis.exchange import Exchange
from core_apis.journal.journal import now
from core_apis.journal.reader import Entry
from core_apis.journal.records import Accepted
from core_apis.prepare.prepared import PreparedResponse
from core_apis.responses.making import response_run
from core_frontend.queue.limit import Arrival

logger = logging.getLogger("core_apis")

RESPONSE = "response"
"""The kind of journal entries of /v1/responses, which are no streams."""


def restore(context: ServingContext) -> None:
    """Restore all entries of the journal, if there is one; running ones with the least work left come first."""
    streams = context.durable
    if streams is None:
        return
    journal = streams.journal
    entries, journal.entries = journal.entries, []
    running = [entry for entry in entries if entry.ended is None and not _is_strange(context, streams, entry)]
    num_strange = 0
    for entry in entries:
        if _is_strange(context, streams, entry):
            streams.set_aside(entry)
            num_strange += 1
        elif entry.ended is not None:
            _show(context, streams, entry)
    for entry in _shortest_first(running):
        _go_on(context, streams, entry)
    if running:
        logger.info("%d requests of an earlier server go on.", len(running))
    if num_strange:
        logger.warning(
            "%d entries of the request journal belong to keys or APIs that this server does not have; they are dropped "
            "when they are older than %g s (--request-journal-lifetime).",
            *(num_strange, streams.settings.lifetime_s),
        )


def _shortest_first(entries: Iterable[Entry]) -> list[Entry]:
    """Sort entries by the number of tokens to recompute before the first new token."""

    def size(entry: Entry) -> int:
        return entry.num_bytes

    return sorted(entries, key=size)


def _is_strange(context: ServingContext, streams: DurableStreams, entry: Entry) -> bool:
    """Whether an entry belongs to a key or an API that this server does not have, so that no client could read it."""
    owner = entry.ended or entry.accepted
    assert owner is not None
    return not streams.key_digests.knows(owner.tenant) or owner.kind not in context.preparer.here.bodies


def _show(context: ServingContext, streams: DurableStreams, entry: Entry) -> None:
    """Make an ended entry readable again."""
    ended = entry.ended
    assert ended is not None
    log = streams.journal.go_on(entry)
    if ended.kind != RESPONSE:
        streams.restore(entry, log)
        return
    kept = restored_response(ended, streams.key_digests.tenant(ended.tenant))
    if kept is None:
        log.dropped()
    else:
        kept.journaled = log
        context.responses.add(kept)


def _go_on(context: ServingContext, streams: DurableStreams, entry: Entry) -> None:
    """Continue an entry that has not ended."""
    accepted = entry.accepted
    assert accepted is not None
    log = streams.journal.go_on(entry)
    try:
        if accepted.kind == RESPONSE:
            _go_on_with_response(context, streams, entry, accepted)
        else:
            _go_on_with_stream(context, streams, entry, accepted)
    except UNREADABLE as error:
        logger.error("The request %s was kept in a form that this version does not know: %s.", accepted.id, error)
        log.dropped()


def _go_on_with_stream(context: ServingContext, streams: DurableStreams, entry: Entry, accepted: Accepted) -> None:
    prepared = msgspec.msgpack.decode(accepted.body, type=context.preparer.here.bodies[accepted.kind].result)
    recorder = RequestRecorder(streams.journal.go_on(entry), entry)
    sentence = _obstacle(context, streams, accepted, getattr(prepared, "chat", prepared))
    if sentence:
        events = _failing(sentence)
    else:
        run = _run(context, prepared, accepted, recorder)
        events = _events(context, context.exchanges[accepted.kind], prepared, accepted, run)
    tenant = streams.key_digests.tenant(accepted.tenant)
    stream = streams.run(accepted.kind, accepted.id, tenant, recorder, events)
    stream.is_broken = bool(sentence)


def _go_on_with_response(context: ServingContext, streams: DurableStreams, entry: Entry, accepted: Accepted) -> None:
    prepared = msgspec.msgpack.decode(accepted.body, type=PreparedResponse)
    recorder = RequestRecorder(streams.journal.go_on(entry), entry)
    run = _run(context, prepared, accepted, recorder)
    sentence = _obstacle(context, streams, accepted, prepared.chat)
    outputs = _failing(sentence) if sentence else run.outputs
    tenant = streams.key_digests.tenant(accepted.tenant)
    response = response_run(context, tenant, prepared, accepted.id, run, outputs, created=accepted.created)
    response.start()


def _run(context: ServingContext, prepared: Any, accepted: Accepted, recorder: RequestRecorder) -> RecordedRun:
    """Return the run that continues. prepared: the request as the earlier server prepared it."""
    runs = getattr(prepared, "chat", prepared)
    return RecordedRun(context, runs, accepted.id, accepted.user, _arrival(context, accepted), recorder)


def _obstacle(context: ServingContext, streams: DurableStreams, accepted: Accepted, runs: Any) -> str:
    """Return the reason why a request cannot continue; empty if it can. runs: its part that the engine runs."""
    try:
        facts = None if context.adapters is None else context.adapters.facts(runs.model)
    except RequestError:  # the name stands for nothing here
        facts = None
    if accepted.adapter != ("" if facts is None else facts.digest):
        begun = f"the adapter with the digest {accepted.adapter:.12}" if accepted.adapter else "the base model"
        return (
            f"This answer began with {begun} under the name '{runs.model}', which stands for something else now, or for "
            "nothing; send the request again."
        )
    if accepted.origin == streams.origin:
        return ""
    return (
        "The server was started again with another model, or one that computes differently, so the rest of this answer would "
        "not be that of its beginning; send the request again."
    )


def _arrival(context: ServingContext, accepted: Accepted) -> Arrival:
    """Return the arrival of a restored request: its time limit keeps running, also while there was no server."""
    assert context.durable is not None
    key = context.durable.key_digests.tenant(accepted.tenant)
    arrival = Arrival(key, ())
    age = max(0.0, now() - accepted.arrived)
    arrival.begin = time.monotonic() - age
    return arrival


async def _events(
    context: ServingContext, exchange: Exchange, prepared: Any, accepted: Accepted, run: RecordedRun
) -> Events:
    """Return the events of a stream from its beginning; the first output is awaited here."""
    first = await anext(run.outputs)
    answer = exchange.answer(context, prepared, accepted.id, accepted.created)
    events = answer.events(first, run.outputs)
    async with aclosing(events):
        async for event in events:
            yield event


async def _failing(sentence: str) -> AsyncGenerator[Any, None]:
    """Fail at once; a stand-in for events or outputs."""
    raise GenerationError(sentence)
    yield
