"""The body of /v1/responses, with the stored items that it needs.

Owns: its row and its steps, most of which are those of the equivalent chat request. Never does: store items. Called by:
`core_apis.apis`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from core_apis.body_kinds import BodyKind, Buffer, json_of
from core_apis.field_names import combined, own_names
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import PreparedChat, PreparedResponse
from core_apis.protocol.responses import Reference, ResponsesRequest, unknown_fields
from core_apis.responses.continuing import check_calls, check_hosted, continue_body
from core_apis.responses.conversation import Item
from core_apis.responses.items import complete, given_items
from core_apis.responses.kept_items import KeptItems, unpacked
from core_apis.responses.tools import chat_tools
from core_apis.responses.translation import FIELD_NAMES, chat_request, check_history
from core_apis.responses.truncation import shortened

_fields = json_of(dict[str, msgspec.Raw])
_body = json_of(ResponsesRequest)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded body. kept: the store's items for it. given: its fields as they came."""

    kept: KeptItems
    given: dict[str, msgspec.Raw]
    body: ResponsesRequest


def decoded(data: Buffer) -> Decoded:
    """Decode a body that is preceded by its stored items (see `kept_items`). Raises RequestError."""
    kept, own = unpacked(data)
    return Decoded(kept, _fields(own), _body(own))


def prepare_response(preparation: Preparation, asked: Decoded) -> PreparedResponse:
    """Prepare a body of /v1/responses for the engine. Raises RequestError."""
    kept, body = asked.kept, asked.body
    body.check(preparation.settings.limits)
    check_history(body, kept)
    items = given_items(body.input, kept.known)
    tools = chat_tools(body.tools, body.tool_choice, kept.servers)
    if tools.shown:
        check_calls(body)
        check_hosted(body)
    conversation = [*(kept.history or ()), *items]
    if kept.continued is not None:
        conversation += kept.continued.items
        continue_body(body, tools, kept.continued, auto=preparation.settings.auto_tool_choice)

    def prepare(some: list[Item]) -> PreparedChat:
        return preparation.prepare_chat(chat_request(body, some, tools))

    with own_names(FIELD_NAMES):
        chat = shortened(conversation, prepare) if body.truncation == "auto" else prepare(conversation)
    chat.names = combined(chat.names, FIELD_NAMES)
    shown_tools = bytes(asked.given["tools"]) if body.tools else b""
    body.input = body.tools = None
    kept_items = complete(items) if body.stored and kept.continued is None else []
    unknown = unknown_fields(asked.given)
    return PreparedResponse(body, chat, kept_items, tools.table, unknown, shown_tools, tools.shown)


def _as_it_is(preparation: Preparation, reference: Reference) -> Reference:
    return reference


BODIES: Final = (
    BodyKind(name="references", decode=json_of(Reference), prepare=_as_it_is, result=Reference),
    BodyKind(
        name="response", decode=decoded, prepare=prepare_response, result=PreparedResponse, renders=True, before=1
    ),
)
