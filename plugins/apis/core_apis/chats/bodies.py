"""The kind of bodies with several chats.

Owns: its row, and the split into the bodies of single chats. Never does: prepare a chat (`core_apis.chats.preparing` has that
done). Called by: `core_apis.openai_bodies`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from core.api.errors import UNREADABLE, RequestError
from core_apis.body_kinds import BodyKind
from core_apis.chats.forms import REFUSED
from core_apis.field_names import own_names
from core_apis.prepare.amounts import check_choices
from core_apis.prepare.preparation import Preparation
from core_apis.protocol.decoding import decode_body

KIND: Final = "chats"
Fields = dict[str, msgspec.Raw]


class SplitChats(msgspec.Struct):
    """A body, split. shared: a JSON object with the fields that all chats have. conversations: JSON of each."""

    shared: bytes
    conversations: list[bytes]

    def body(self, index: int) -> bytes:
        """Return the body of one chat."""
        separator = b"" if self.shared == b"{}" else b","
        return self.shared[:-1] + separator + b'"messages":' + self.conversations[index] + b"}"


def split_chats(preparation: Preparation, fields: Fields) -> SplitChats:
    """Split a body into chats. Raises RequestError for one that is not served, or whose chats would be too large."""
    preparation.check_model(_plain(fields.get("model"), str))
    for name, (harmless, way_out) in REFUSED.items():
        if name in fields and _value(fields[name]) not in (None, *harmless):
            raise RequestError(f"{name} is not served here: {way_out}; leave it out.", param=name)
    given = fields.pop("messages", msgspec.Raw(b"null"))
    try:
        conversations = [bytes(one) for one in msgspec.json.decode(given, type=list[msgspec.Raw])]
    except UNREADABLE:
        raise RequestError("messages must be a list of conversations.", param="messages") from None
    for index, one in enumerate(conversations):
        if not one.lstrip().startswith(b"["):
            raise RequestError(
                f"messages[{index}] is no conversation; expected a list of messages, or a single chat at "
                "/v1/chat/completions.",
                param="messages",
            )
    if not conversations:
        raise RequestError("messages is empty; give at least one conversation.", param="messages")
    with own_names({"prompt": "messages"}):
        check_choices(preparation.settings, conversations, 1)
    shared = msgspec.json.encode(fields)
    most = preparation.settings.limits.max_body_size
    if len(shared) * len(conversations) > most:
        raise RequestError(
            f"The fields besides messages have {len(shared)} bytes, for each of {len(conversations)} conversations; at most "
            f"{most} bytes in all fit one request (--max-body-size). Send fewer conversations at once.",
            param="messages",
            status=413,
            code="too_large",
        )
    return SplitChats(shared, conversations)


def _value(raw: msgspec.Raw) -> Any:
    """Return a value; one too deep to read is another than all that are harmless."""
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE:
        return ...


def _plain(raw: msgspec.Raw | None, form: type[str]) -> str | None:
    """Return the value of a field; None if it is of another form, which the first chat refuses."""
    try:
        return None if raw is None else msgspec.json.decode(raw, type=form)
    except UNREADABLE:
        return None


BODIES: Final = (
    BodyKind(
        name=KIND,
        decode=partial(decode_body, msgspec.json.Decoder(Fields)),
        prepare=split_chats,
        result=SplitChats,
    ),
)
