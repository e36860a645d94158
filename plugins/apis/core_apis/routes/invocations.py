"""POST /invocations, as SageMaker calls it: the body says which path it is meant for.

Owns: which field means which kind of body. Never does: answer (the pipeline does).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Message

from core.api.errors import UNREADABLE, RequestError
from core_apis.body import read_body
from core_apis.context import context_of
from core_apis.pipeline import answered

router = APIRouter(tags=["generation"])

KINDS: Final = (
    (("messages",), "chat"),
    (("prompt",), "completion"),
    (("prompt_embeds",), "completion"),
    (("query", "documents"), "rerank"),
    (("query", "items"), "generative scoring"),
    (("text_1", "text_2"), "score"),
    (("queries", "documents"), "score"),
    (("texts",), "embed"),
    (("token_ids",), "tokens"),
    (("input",), "embedding"),
)
"""Fields that a body of each kind has; the first row that fits counts."""


class _Names(msgspec.Struct):
    """The fields of a body that say its kind; the values do not matter."""

    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt_embeds: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    query: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    items: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    queries: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    documents: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    text_1: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    text_2: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    texts: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@router.post("/invocations")
async def invocations(request: Request) -> Response:
    """Answer a chat, a completion, texts to embed, items to score or to rank, or token ids, by the fields of the body."""
    context = context_of(request)
    context.drain.check()
    with context.bodies.body() as body:
        pieces = [bytes(piece) for piece in await read_body(request, body)]
    kind = _kind_of(pieces)
    exchange = context.exchanges.get(kind)
    if exchange is None:
        raise RequestError(f"The body is one of the kind '{kind}', whose API this server leaves out (--plugins).")
    return await answered(Request(request.scope, _Again(request, pieces)), exchange)


class _Again:
    """What an application receives of a request whose body was read before: the body, then what still comes."""

    def __init__(self, request: Request, pieces: Sequence[bytes]) -> None:
        self._request = request
        self._pieces = list(pieces)

    async def __call__(self) -> Message:
        """Return the next message."""
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        return await self._request.receive()


def _kind_of(pieces: Sequence[bytes]) -> str:
    """Return the kind of a body. Raises RequestError."""
    try:
        names = msgspec.json.decode(b"".join(pieces), type=_Names)
    except UNREADABLE as error:
        raise RequestError(f"The request body is not understood: {error}.", code="invalid_json") from None
    for fields, kind in KINDS:
        if all(getattr(names, field) is not msgspec.UNSET for field in fields):
            return kind
    expected = ", ".join(" and ".join(fields) for fields, _ in KINDS)
    raise RequestError(f"The body is of no kind that is served here; expected one with {expected}.", param="body")
