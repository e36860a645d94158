"""The bodies of the Messages API.

Owns: their rows and their steps, most of which are those of the equivalent chat request. Called by: `core_apis.apis`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from core_apis.anthropic.chat import (
    FIELD_NAMES,
    chat_request,
    check_fields,
    omits_thinking,
    shows_late_system,
    thinking_budget,
)
from core_apis.body_kinds import BodyKind, Buffer, json_of
from core_apis.field_names import combined, own_names
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import CountedTokens, PreparedMessages, Prompt
from core_apis.protocol.anthropic import CountTokensRequest, MessagesRequest
from core_apis.protocol.anthropic_answer import TokenCount
from core_formats.answers.plan import check_template
from core_media.reading.parts import take_media
from core_tokens.chat.written_text import plain, spans_of

_fields = json_of(dict[str, msgspec.Raw])


def _decoded(decode: Callable[[Buffer], Any], data: Buffer) -> tuple[Any, list[str]]:
    """Decode a body; return it with the names of its tolerated fields. Raises RequestError."""
    unknown = check_fields(_fields(data))
    return decode(data), unknown


def _late_system(preparation: Preparation) -> bool:
    """Whether the template renders system messages that follow other messages."""
    return shows_late_system(preparation.template)


def prepare_messages(preparation: Preparation, asked: tuple[MessagesRequest, list[str]]) -> PreparedMessages:
    """Prepare a body of /v1/messages for the engine. Raises RequestError."""
    body, unknown = asked
    request = chat_request(body, late_system=preparation.once(_late_system))
    served = preparation.settings.format
    if served is not None and served.row.reasoning is not None:
        request.thinking_token_budget = thinking_budget(body)
    with own_names(FIELD_NAMES):
        chat = preparation.prepare_chat(request)
    chat.names = combined(chat.names, FIELD_NAMES)
    room = preparation.settings.max_model_len - len(chat.prompts[0].token_ids)
    chat.params.max_tokens = min(body.max_tokens, room)
    return PreparedMessages(chat, body.max_tokens, omits_thinking(body), unknown)


def count_tokens(preparation: Preparation, asked: tuple[CountTokensRequest, list[str]]) -> CountedTokens:
    """Count the tokens of a body of /v1/messages/count_tokens, rendered and tokenized like a request.

    Raises RequestError.
    """
    given, unknown = asked
    body = chat_request(given, late_system=preparation.once(_late_system))
    preparation.check_model(body.model)
    settings, special = preparation.settings, bool(body.add_special_tokens)
    with own_names(FIELD_NAMES):
        pictures = take_media(body.messages or [], settings.media, settings.media_refusal)
        use = preparation.checked(body)
        check_template(use, preparation.template, settings.format)
        text = preparation.render(body, use)
        if pictures:
            prompt = Prompt(plain(text), [], pictures=pictures, written=spans_of(text))
            return CountedTokens(TokenCount(0), unknown, prompt, special)
        ids = preparation.texts.rendered(text, special).ids
    return CountedTokens(TokenCount(len(ids)), unknown)


BODIES: Final = (
    BodyKind(
        name="messages",
        decode=partial(_decoded, json_of(MessagesRequest)),
        prepare=prepare_messages,
        result=PreparedMessages,
        renders=True,
    ),
    BodyKind(
        name="count_tokens",
        decode=partial(_decoded, json_of(CountTokensRequest)),
        prepare=count_tokens,
        result=CountedTokens,
        renders=True,
    ),
)
