"""A body of /v1/responses with the stored items that it needs, as bytes.

Owns: that form, and which stored items a body refers to. Never does: store them. Called by: the route, which knows the
store, and `core_apis.prepare.preparation`, which may run in another process.

The form is the length of the stored items (uint32, little-endian), these as JSON, and the body as it came.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from core.api.errors import UNREADABLE, RequestError
from core_apis.protocol.responses import Reference
from core_apis.responses.conversation import Item
from core_apis.responses.items import REFERENCE, KeptItem

Buffer = bytes | bytearray | memoryview

LENGTH_BYTES = 4
MARKS = (b"previous_response_id", REFERENCE.encode())
"""Names that a body must contain to refer to stored items.

They are searched first: bodies are long, and few refer to any.
"""
LONGEST_MARK = max(map(len, MARKS))


class KeptItems(msgspec.Struct):
    """The store's content for one body.

    history: items of the earlier responses, in order; None: the body names none.
    known: items by id, as far as the body refers to them.
    """

    history: list[Item] | None = None
    known: dict[str, Item] = {}


_decode_kept = msgspec.json.Decoder(KeptItems).decode


def mentions_items(before: Buffer, piece: Buffer) -> bool:
    """Return whether a piece of a body may contain references. before: the piece before it."""
    whole = bytes(before[-LONGEST_MARK:]) + piece
    return any(mark in whole for mark in MARKS)


def referred(reference: Reference) -> list[str]:
    """Return the ids of the items that a body refers to."""
    items = reference.input if isinstance(reference.input, list) else []
    return [item.id for item in items if item.type == REFERENCE and item.id]


def packed(history: bytes | None, known: Mapping[str, KeptItem]) -> bytes:
    """Return the items as they precede a body. history: a list in JSON."""
    items = {name: msgspec.Raw(item.data) for name, item in known.items()}
    kept = b'{"history":' + (history or b"null") + b',"known":' + msgspec.json.encode(items) + b"}"
    return len(kept).to_bytes(LENGTH_BYTES, "little") + kept


def unpacked(data: Buffer) -> tuple[KeptItems, memoryview]:
    """Return the items and the body. Raises RequestError for bytes that `packed` did not make."""
    whole = memoryview(data)
    start = LENGTH_BYTES + int.from_bytes(whole[:LENGTH_BYTES], "little")
    try:
        return _decode_kept(whole[LENGTH_BYTES:start]), whole[start:]
    except UNREADABLE as error:
        raise RequestError(f"The body does not begin with its kept items ({error}).") from error
