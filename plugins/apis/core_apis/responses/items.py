"""The stored form of an input's items: complete, each with an id of its own.

Owns: that form. Never does: store them (the store does), or read them for the model. Called by: the translation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import NAMESPACE_OID, uuid4, uuid5

import msgspec

from core.api.errors import RequestError
from core_apis.responses.conversation import Item, item_kind

PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
}
REFERENCE = "item_reference"
READ = frozenset({
    "type", "id", "status", "role", "content", "summary", "encrypted_content", "arguments", "call_id", "name", "namespace",
    "input", "output", "server_label", "error", "tools", "approval_request_id",
})  # fmt: skip
"""Fields of items that are read, or used in answers."""
PART_READ = frozenset({"type", "text", "refusal", "annotations", "logprobs"})
MOST_UNREAD = 16_384
"""Limit in bytes of JSON on an item's fields that are only stored and returned."""

_encode = msgspec.json.Encoder().encode


class KeptItem(msgspec.Struct, array_like=True, frozen=True):
    """An item in its stored form. data: the whole item as JSON, which is never decoded here again."""

    id: str
    data: bytes


def new_id(kind: str) -> str:
    """Return a new id for an item of this kind."""
    return f"{PREFIXES[kind]}_{uuid4().hex}"


def output_id(kind: str, response_id: str, index: int) -> str:
    """Return the id of an item of an output: the same whenever that response is written again."""
    return f"{PREFIXES[kind]}_{uuid5(NAMESPACE_OID, f'{response_id} {index}').hex}"


def given_items(given: str | list[Item] | None, known: Mapping[str, Item]) -> list[Item]:
    """Return the items of an input. known: stored items by id, which replace references. Raises RequestError."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    items: list[Item] = []
    for index, item in enumerate(given or ()):
        is_reference = item.get("type") == REFERENCE
        items.append(_referenced(item, known, index) if is_reference else item)
    return items


def complete(items: list[Item]) -> list[KeptItem]:
    """Complete the items with everything that an answer about them needs. They have been checked before.

    Raises RequestError for an item with too much data in unread fields.
    """
    found: list[KeptItem] = []
    for index, item in enumerate(items):
        _check_unread(item, index)
        whole = _completed(item)
        found.append(KeptItem(str(whole["id"]), _encode(whole)))
    return found


def _check_unread(item: Item, index: int) -> None:
    """Raise RequestError if the fields that are only stored take too much."""
    unread: dict[str, Any] = {name: value for name, value in item.items() if name not in READ}
    for key in ("content", "summary", "output"):
        parts = item.get(key)
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict):
                unread.update({name: value for name, value in part.items() if name not in PART_READ})
    if not unread:
        return
    size = len(_encode(unread))
    if size > MOST_UNREAD:
        names = ", ".join(sorted(unread))[:200]
        raise RequestError(
            f"input[{index}] has {size} bytes in fields that are not read ({names}); expected at most {MOST_UNREAD}. Leave "
            "them out, or do not store the response (store: false).",
            param="input",
        )


def _referenced(item: Item, known: Mapping[str, Item], index: int) -> Item:
    name = item.get("id")
    found = known.get(name) if isinstance(name, str) else None
    if found is None:
        raise RequestError(
            f"input[{index}] refers to the item {name!r}, which this server does not keep; send the item itself.",
            param="input",
            status=404,
            code="item_not_found",
        )
    return found


def _completed(item: Item) -> Item:
    kind = str(item_kind(item))
    whole: dict[str, Any] = {**item, "type": kind}
    whole["id"] = item.get("id") or new_id(kind)
    whole["status"] = item.get("status") or "completed"
    if kind == "reasoning":
        whole["summary"] = item.get("summary") or []
    if kind == "message":
        whole["content"] = _parts(item)
    return whole


def _parts(item: Item) -> list[Any]:
    """Return the content of a message as a list of parts."""
    content = item["content"]
    is_answer = item["role"] == "assistant"
    parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    written: list[Any] = []
    for part in parts:
        if part["type"] == "refusal":
            written.append(part)
        elif is_answer:
            written.append({"annotations": [], **part, "type": "output_text"})
        else:
            written.append({**part, "type": "input_text"})
    return written
