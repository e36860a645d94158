"""A body of /v1/responses with the stored items that it needs, as bytes.

Owns: that form, and which stored items a body refers to. Never does: store them. Called by: the route, which knows the
store, and `core_apis.prepare.preparation`, which may run in another process.

The form is the length of the stored items (uint32, little-endian), these as JSON, and the body as it came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from core.api.errors import UNREADABLE, RequestError
from core_apis.protocol.responses import Reference
from core_apis.responses.conversation import Item
from core_apis.responses.items import REFERENCE, KeptItem
from core_apis.tools.offered import ToolServer

Buffer = bytes | bytearray | memoryview

LENGTH_BYTES = 4
MARKS = (b"previous_response_id", REFERENCE.encode())
"""Names that a body must contain to refer to stored items.

They are searched first: bodies are long, and few refer to any.
"""
LONGEST_MARK = max(map(len, MARKS))


class Continued(msgspec.Struct):
    """What an answer has come to, when the model is to go on with the results of the tools that ran for it.

    items: of its output so far, results included. calls: whether the model may call again.
    max_output_tokens: number of tokens left; None: as many as fit.
    """

    items: list[Item]
    calls: bool = True
    max_output_tokens: int | None = None


class KeptItems(msgspec.Struct):
    """What the server knows of one body, besides its bytes.

    history: items of the earlier responses, in order; None: the body names none.
    known: items by id, as far as the body refers to them.
    servers: the tool servers of the operator, if the body may offer their tools.
    continued: None: the answer has not begun.
    """

    history: list[Item] | None = None
    known: dict[str, Item] = {}
    servers: list[ToolServer] = []
    continued: Continued | None = None


HOSTED_MARK = b"mcp"
"""A type that a body must contain to offer tools of the operator's servers."""

_decode_kept = msgspec.json.Decoder(KeptItems).decode


def mentions_items(before: Buffer, piece: Buffer) -> bool:
    """Return whether a piece of a body may contain references. before: the piece before it."""
    whole = bytes(before[-LONGEST_MARK:]) + piece
    return any(mark in whole for mark in MARKS)


def referred(reference: Reference) -> list[str]:
    """Return the ids of the items that a body refers to."""
    items = reference.input if isinstance(reference.input, list) else []
    return [item.id for item in items if item.type == REFERENCE and item.id]


def packed(
    history: bytes | None,
    known: Mapping[str, KeptItem],
    servers: Sequence[ToolServer] = (),
    continued: Continued | None = None,
) -> bytes:
    """Return the items as they precede a body. history: a list in JSON."""
    items = {name: msgspec.Raw(item.data) for name, item in known.items()}
    parts = {
        "history": msgspec.Raw(history or b"null"),
        "known": items,
        "servers": servers,
        "continued": continued,
    }
    kept = msgspec.json.encode(parts)
    return len(kept).to_bytes(LENGTH_BYTES, "little") + kept


def unpacked(data: Buffer) -> tuple[KeptItems, memoryview]:
    """Return the items and the body. Raises RequestError for bytes that `packed` did not make."""
    whole = memoryview(data)
    start = LENGTH_BYTES + int.from_bytes(whole[:LENGTH_BYTES], "little")
    try:
        return _decode_kept(whole[LENGTH_BYTES:start]), whole[start:]
    except UNREADABLE as error:
        raise RequestError(f"The body does not begin with its kept items ({error}).") from error
