"""The records of traffic, and reading them back.

Owns: `TrafficRecord`, and `read_traffic`. Never does: write. Called by: the recorder, `core diff`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from core.api.errors import UNREADABLE, UserError
from core_apis.journal.browsing import browse
from core_apis.journal.records import Kind
from core_observers.receipts.receipt import IssuedReceipt


class RecordedChoice(msgspec.Struct, array_like=True):
    """One answer. token_ids: int32, little-endian."""

    index: int
    token_ids: bytes
    finish_reason: str | None


class RecordedPrompt(msgspec.Struct, array_like=True):
    """One prompt with its answers, and their receipt."""

    token_ids: bytes
    choices: list[RecordedChoice]
    issued: IssuedReceipt


class TrafficRecord(msgspec.Struct, array_like=True):
    """One request.

    path:   that it was sent to.
    body:   as the client sent it.
    tenant: digest of its API key; empty: it had none.
    at:     seconds since the epoch of its arrival.
    """

    path: str
    body: bytes
    tenant: bytes
    at: float
    prompts: list[RecordedPrompt]


def packed(token_ids: list[int]) -> bytes:
    """Return token ids as they are recorded."""
    return np.asarray(token_ids, "<i4").tobytes()


def unpacked(data: bytes) -> list[int]:
    """Return the token ids of a record."""
    found: list[int] = np.frombuffer(data, "<i4").tolist()
    return found


def read_traffic(directory: str) -> Iterator[TrafficRecord | None]:
    """Yield the records of a directory, oldest first; None for one of another version. Damaged ones are skipped.

    Raises UserError where there are none.
    """
    found = False
    is_journal = False
    for frame in browse(directory):
        is_journal = is_journal or frame.kind is Kind.ACCEPTED
        if frame.kind is not Kind.TRAFFIC:
            continue
        found = True
        try:
            record = msgspec.msgpack.decode(frame.payload, type=TrafficRecord)
        except UNREADABLE:
            yield None
            continue
        yield record
    if is_journal and not found:
        raise UserError(
            f"{directory}: a request journal keeps no tokens of answers that have ended; give two engines, --left and --right, "
            "which compute them anew, or record some with --record-traffic."
        )
    if not found:
        raise UserError(
            f"{directory}: it holds no recorded requests; give one that a server wrote with --record-traffic."
        )
