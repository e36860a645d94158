"""Bodies of /v1/embeddings, /pooling, /score and /rerank, and their answers.

Owns: their Structs and what can be checked without a model. Called by: their routes and the preparation.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from core.api.errors import RequestError
from core.api.pooling_params import PoolingParams, PoolingTask
from core.serving.protocol.sampling import Int32, RequestId
from core.serving.protocol.usage import Usage

Text = str | list[int]
"""One text, or its token ids."""


class PoolingBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that all of these requests share. None always means: not given.

    `user` names whose the request is; `metadata` is accepted and changes nothing: OpenAI's field for accounting.
    """

    model: str | None = None
    truncate_prompt_tokens: Int32 | None = None
    add_special_tokens: bool | None = None
    priority: Int32 | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    cache_salt: str | None = None
    request_id: RequestId | None = None
    user: Any = None
    metadata: Any = None

    @property
    def text_field(self) -> str:
        """The field that errors about a text name."""
        return "input"

    def texts(self) -> list[Text]:
        """Everything to pool, in order; none of them empty. Raises RequestError."""
        raise NotImplementedError

    def params(self) -> PoolingParams:
        """How. Raises RequestError."""
        return PoolingParams(task="embed", truncate_prompt_tokens=self.truncate_prompt_tokens)


class EmbeddingRequest(PoolingBody, forbid_unknown_fields=True, kw_only=True):
    """input: a text, token ids, or a list of either. encoding_format: base64 is of float32 numbers, little-endian."""

    input: str | list[Any] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int32 | None = None
    use_activation: bool | None = None
    normalize: bool | None = None

    def texts(self) -> list[Text]:
        """The input as a list."""
        return texts_of("input", self.input)

    def params(self) -> PoolingParams:
        """One vector a text."""
        return PoolingParams(
            task="embed",
            dimensions=self.dimensions,
            use_activation=self.use_activation,
            normalize=self.normalize,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
        )


class PoolingRequest(EmbeddingRequest, forbid_unknown_fields=True, kw_only=True):
    """task: a vector a text (embed) or a token (token_embed)."""

    task: PoolingTask | None = None

    def params(self) -> PoolingParams:
        """As the task says."""
        return msgspec.structs.replace(super().params(), task=self.task)


class ScoreRequest(PoolingBody, forbid_unknown_fields=True, kw_only=True):
    """text_1 is compared with text_2: one with each, or pair by pair."""

    text_1: str | list[Any] | None = None
    text_2: str | list[Any] | None = None

    @property
    def text_field(self) -> str:
        """The field with most of the texts."""
        return "text_2"

    def sides(self) -> tuple[list[Text], list[Text]]:
        """Both lists. Raises RequestError unless there is one first text, or as many as second ones."""
        first = texts_of("text_1", self.text_1)
        second = texts_of("text_2", self.text_2)
        if len(first) not in (1, len(second)):
            raise RequestError(
                f"text_1 has {len(first)} texts and text_2 {len(second)}; expected one, or as many.", param="text_1"
            )
        return first, second

    def texts(self) -> list[Text]:
        """The first ones, then the second ones."""
        first, second = self.sides()
        return [*first, *second]


class RerankRequest(PoolingBody, forbid_unknown_fields=True, kw_only=True):
    """documents: texts, or objects with a `text`. top_n: how many of the best are wanted; None or 0: all."""

    query: str | None = None
    documents: list[Any] | None = None
    top_n: Int32 | None = None
    return_documents: bool | None = None

    @property
    def text_field(self) -> str:
        """The field with most of the texts."""
        return "documents"

    def texts(self) -> list[Text]:
        """The query, then the documents."""
        if self.query is None:
            raise RequestError(
                "The field 'query' is missing; the request needs it.", param="query", code="missing_field"
            )
        if self.top_n is not None and self.top_n < 0:
            raise RequestError(f"top_n is {self.top_n}; expected an integer from 0 on.", param="top_n")
        plain: list[Text] = [self.query]
        for document in self.documents or []:
            text = document.get("text") if isinstance(document, dict) else document
            if not isinstance(text, str):
                plain = []
                break
            plain.append(text)
        if len(plain) < 2:
            raise RequestError(
                "documents must be a list of texts, or of objects with a 'text', with at least one entry.",
                param="documents",
                code="invalid_type",
            )
        return plain


def texts_of(name: str, given: Any) -> list[Text]:
    """A field that holds a text, token ids, or a list of either, as a list. Raises RequestError."""
    if given is None:
        raise RequestError(f"The field '{name}' is missing; the request needs it.", param=name, code="missing_field")
    is_list = isinstance(given, list) and bool(given) and isinstance(given[0], str | list)
    items = given if is_list else [given]
    for item in items:
        if item in ("", []):
            raise RequestError(f"{name} is empty, or has an empty entry; give text.", param=name, code="empty_prompt")
        is_ids = isinstance(item, list) and all(type(token) is int and token >= 0 for token in item)
        if not isinstance(item, str) and not is_ids:
            raise RequestError(
                f"{name} must be a string, a list of strings, a list of token ids (integers from 0), or a list of such "
                "lists.",
                param=name,
                code="invalid_type",
            )
    return list(items)


class Embedding(msgspec.Struct):
    """embedding: numbers, or base64 of them."""

    object: str
    index: int
    embedding: list[float] | str


class Pooled(msgspec.Struct):
    """data: numbers (a list for each token, where that was asked for), or base64 of them."""

    object: str
    index: int
    data: list[Any] | str


class Score(msgspec.Struct):
    """score: of one pair."""

    object: str
    index: int
    score: float


class ListAnswer(msgspec.Struct, kw_only=True):
    """What these answers share."""

    id: str
    object: str = "list"
    created: int
    model: str
    usage: Usage


class EmbeddingAnswer(ListAnswer, kw_only=True):
    """The answer to /v1/embeddings."""

    data: list[Embedding]


class PoolingAnswer(ListAnswer, kw_only=True):
    """The answer to /pooling."""

    data: list[Pooled]


class ScoreAnswer(ListAnswer, kw_only=True):
    """The answer to /score."""

    data: list[Score]


class Document(msgspec.Struct):
    """One of the texts that came."""

    text: str


class Ranked(msgspec.Struct, omit_defaults=True):
    """index: among the documents that came."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class RerankAnswer(msgspec.Struct, kw_only=True):
    """The best documents first, as Jina and Cohere write it."""

    id: str
    model: str
    usage: Usage
    results: list[Ranked]
