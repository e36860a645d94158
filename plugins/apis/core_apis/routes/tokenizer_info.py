"""GET /tokenizer_info.

Owns: the route and its content. Never does: encode.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core.api.errors import RequestError
from core_apis.body import json_response
from core_apis.context import context_of
from core_apis.protocol.tokenizer_info import AddedToken, TokenizerInfo
from core_tokens.tokenizer import Tokenizer

router = APIRouter(tags=["tokens"])


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """Return what a client needs to render and count as this server does: special tokens and the chat template."""
    context = context_of(request)
    tokenizer = context.engine.tokenizer
    if tokenizer.refusal:
        raise RequestError(tokenizer.refusal)
    template = context.preparer.here.settings.chat_template
    return json_response(info_of(tokenizer, context.model.max_model_len, template))


def info_of(tokenizer: Tokenizer, max_model_len: int, chat_template: str | None) -> TokenizerInfo:
    """Return the answer. chat_template: the template that this server renders with."""
    added: dict[str, AddedToken] = {}
    for index, token in tokenizer.backend.get_added_tokens_decoder().items():
        added[str(index)] = AddedToken(
            content=token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized,
            special=token.special,
        )
    named = tokenizer.special_tokens
    return TokenizerInfo(
        model_max_length=max_model_len,
        vocab_size=tokenizer.vocab_size,
        bos_token=named.get("bos_token"),
        eos_token=named.get("eos_token"),
        pad_token=named.get("pad_token"),
        unk_token=named.get("unk_token"),
        split_special_tokens=tokenizer.split_special_tokens,
        chat_template=chat_template,
        added_tokens_decoder=added,
    )
