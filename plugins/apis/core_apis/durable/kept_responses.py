"""The journal's form of responses that have ended.

Owns: that form, and `ResponseKeeper`, which asks the journal to store them. Never does: know the store. Called by: the
store, runs, `restoring`.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable

import msgspec

from core.api.decoding import UNREADABLE
from core_apis.callers.tenant import Tenant
from core_apis.durable.event_ids import LARGEST
from core_apis.durable.key_digests import KeyDigests
from core_apis.durable.sureness import Sureness
from core_apis.journal.journal import Journal, now
from core_apis.journal.records import Ended
from core_apis.responses.event_log import EventLog
from core_apis.responses.items import KeptItem
from core_apis.responses.stored_response import StoredResponse

logger = logging.getLogger("core_apis")


class KeptResponse(msgspec.Struct, array_like=True):
    """A response that has ended; fields as in `StoredResponse`.

    items, output: lists in JSON. item_ids: ids of both, in this order. events: a compressed list; None: it has none.
    """

    previous: str | None
    items: bytes
    item_ids: tuple[str, ...]
    background: bool
    final: bytes
    output: bytes
    events: bytes | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KeptResponse).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_events = msgspec.msgpack.Decoder(list[bytes]).decode


class ResponseKeeper:
    """Writer of the ended responses of one server to the journal. Called by the store and by runs."""

    def __init__(self, journal: Journal, key_digests: KeyDigests) -> None:
        self._journal = journal
        self._key_digests = key_digests

    def keep(self, entry: StoredResponse) -> None:
        """Store a response that has ended."""
        ended = kept_response(entry, self._key_digests.digest(entry.tenant))
        if entry.journaled is None:
            entry.journaled = self._journal.keep(ended)
        else:
            entry.journaled.ended(ended)

    def forget(self, entry: StoredResponse) -> None:
        """Remove a response from the journal."""
        if entry.journaled is not None:
            entry.journaled.dropped()


def kept_response(entry: StoredResponse, digest: bytes) -> Ended:
    """Return the journal's form of a store entry that has ended. digest: of its tenant."""
    events = None if entry.log is None else zlib.compress(_encode(entry.log.events), 1)
    kept = KeptResponse(
        previous=entry.previous,
        items=_listed(entry.items),
        item_ids=tuple(item.id for item in (*entry.items, *entry.output)),
        background=entry.background,
        final=entry.final,
        output=_listed(entry.output),
        events=events,
    )
    return Ended("response", entry.id, digest, now(), _encode(kept))


def restored_response(ended: Ended, tenant: Tenant) -> StoredResponse | None:
    """Return the store entry again; None for a form that this version does not know."""
    try:
        kept = _decode(ended.kept)
        events = None if kept.events is None else _decode_events(zlib.decompress(kept.events))
        inputs, outputs = _decode_list(kept.items), _decode_list(kept.output)
    except (*UNREADABLE, zlib.error) as error:
        logger.error("The response %s was kept in a form that this version does not know: %s.", ended.id, error)
        return None
    log: EventLog | None = None
    if events is not None:
        log = EventLog()
        log.append(events)
        log.close()
    return StoredResponse(
        id=ended.id,
        tenant=tenant,
        response=None,
        previous=kept.previous,
        items=_items(kept.item_ids, inputs),
        background=kept.background,
        log=log,
        sure=Sureness(LARGEST, is_final=True),
        final=kept.final,
        output=_items(kept.item_ids[len(inputs) :], outputs),
    )


def _listed(items: Iterable[KeptItem]) -> bytes:
    """Return items as a list in JSON."""
    return b"[" + b",".join(item.data for item in items) + b"]"


def _items(ids: Iterable[str], texts: Iterable[msgspec.Raw]) -> tuple[KeptItem, ...]:
    return tuple(KeptItem(name, bytes(text)) for name, text in zip(ids, texts, strict=False))
