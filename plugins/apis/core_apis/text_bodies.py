"""The bodies of /tokenize and /detokenize.

Owns: their rows, and their answers, which need no engine and are serialized where the request is prepared. Called by:
`core_apis.apis`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from core.api.errors import RequestError
from core_apis.body_kinds import BodyKind, json_of
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import WrittenAnswer
from core_apis.protocol.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from core_formats.answers.plan import check_template


def tokenized(preparation: Preparation, body: TokenizeRequest) -> WrittenAnswer:
    """Return the answer to a body of /tokenize. Raises RequestError."""
    preparation.check_model(body.model)
    use = body.check(preparation.settings.limits, shows_uncallable=preparation.settings.template.shows_uncallable)
    check_template(use, preparation.template, preparation.settings.format)
    if body.prompt is None:
        ids = preparation.texts.rendered(preparation.render(body, use), bool(body.add_special_tokens)).ids
    else:
        ids = preparation.texts.encode(body.prompt, body.add_special_tokens is not False)
    texts = [preparation.tokenizer.token_text(i) for i in ids] if body.return_token_strs else None
    return _written(TokenizeResponse(len(ids), preparation.settings.max_model_len, ids, texts))


def detokenized(preparation: Preparation, body: DetokenizeRequest) -> WrittenAnswer:
    """Return the answer to a body of /detokenize. Raises RequestError."""
    preparation.check_model(body.model)
    if preparation.tokenizer.refusal:
        raise RequestError(preparation.tokenizer.refusal, param="tokens")
    size = preparation.settings.vocab_size
    if max(body.tokens, default=0) >= size:
        wrong = next(token for token in body.tokens if token >= size)
        raise RequestError(f"Token id {wrong} is outside the vocabulary; expected 0 to {size - 1}.", param="tokens")
    return _written(DetokenizeResponse(preparation.tokenizer.decode(body.tokens, skip_special_tokens=False)))


def _written(answer: TokenizeResponse | DetokenizeResponse) -> WrittenAnswer:
    return WrittenAnswer(msgspec.json.encode(answer))


BODIES: Final = (
    BodyKind(name="tokenize", decode=json_of(TokenizeRequest), prepare=tokenized, result=WrittenAnswer, renders=True),
    BodyKind(name="detokenize", decode=json_of(DetokenizeRequest), prepare=detokenized, result=WrittenAnswer),
)
