"""POST /tokenize and /detokenize. Owns: their steps."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from core.api.errors import RequestError
from core.serving.body import json_response, read_body
from core.serving.context import context_of
from core.serving.prompts import chat_prompt, text_prompt
from core.serving.protocol.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse

router = APIRouter(tags=["tokens"])

_tokenize = msgspec.json.Decoder(TokenizeRequest)
_detokenize = msgspec.json.Decoder(DetokenizeRequest)


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Token ids of a prompt or of a rendered conversation."""
    context = context_of(request)
    body = await read_body(request, _tokenize)
    context.check_model(body.model)
    body.check()
    if body.prompt is None:
        prompt = await chat_prompt(context, body, bool(body.add_special_tokens))
    else:
        prompt = await text_prompt(context, body.prompt, body.add_special_tokens is not False)
    ids = prompt.token_ids
    texts = [context.engine.tokenizer.token_text(i) for i in ids] if body.return_token_strs else None
    return json_response(TokenizeResponse(len(ids), context.model.max_model_len, ids, texts))


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """Text of token ids, special tokens included."""
    context = context_of(request)
    body = await read_body(request, _detokenize)
    context.check_model(body.model)
    tokenizer = context.engine.tokenizer
    for token_id in body.tokens:
        if token_id >= tokenizer.vocab_size:
            raise RequestError(
                f"Token id {token_id} is outside the vocabulary; expected 0 to {tokenizer.vocab_size - 1}.",
                param="tokens",
            )
    return json_response(DetokenizeResponse(tokenizer.decode(body.tokens, skip_special_tokens=False)))
