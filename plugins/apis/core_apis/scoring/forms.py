"""Bodies and answers of /generative_scoring, in vLLM's form.

Owns: their Structs. Called by: `core_apis.scoring.bodies`, the writer, the OpenAPI document, the page of fields.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from core_apis.protocol.sampling import Int32, RequestId, ServiceTier
from core_apis.protocol.usage import Usage
from core_apis.token_io.forms import TokenId

Text = str | list[TokenId]
"""A text, or its token ids."""


class GenerativeScoringRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A query, and items to score for it.

    query: comes before each item; may be empty where each item is a whole prompt.
    label_token_ids: the tokens whose probabilities count; the score is that of the first.
    apply_softmax: whether the probabilities of the labels add up to 1. If not, they are those in the whole vocabulary.
    item_first: whether each item comes before the query.
    add_special_tokens: whether a prompt that begins with a text begins with the tokenizer's special tokens.
    timeout: in seconds.
    """

    query: Text
    items: list[Text]
    label_token_ids: list[TokenId]
    apply_softmax: bool = True
    item_first: bool = False
    add_special_tokens: bool = True
    model: str | None = None
    cache_salt: str | None = None
    priority: Int32 | None = None
    request_id: RequestId | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    service_tier: ServiceTier | None = None
    user: str | None = None


class ItemScore(msgspec.Struct):
    """The score of one item. index: its place in the request. score: a probability."""

    index: int
    score: float
    object: Literal["score"] = "score"


class GenerativeScoringResponse(msgspec.Struct):
    """The scores of all items in their order. created: seconds since the epoch."""

    id: str
    created: int
    model: str
    data: list[ItemScore]
    usage: Usage
    object: Literal["list"] = "list"
