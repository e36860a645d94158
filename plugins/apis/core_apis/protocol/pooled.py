"""Answers to requests for vectors, classes, scores and rankings.

Owns: their Structs. Called by: `core_apis.pooling.answers` and the OpenAPI document.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from core_apis.protocol.usage import Usage
from core_frontend.api.late_chunking import LateChunkingMetadata


class Embedding(msgspec.Struct, omit_defaults=True):
    """The vector of one text.

    embedding: numbers (a list for each token or part of a text, if that was requested), or base64 of them.
    late_chunking: which part of the text each list belongs to.
    """

    object: str
    index: int
    embedding: list[Any] | str
    late_chunking: LateChunkingMetadata | UnsetType = UNSET


class Pooled(msgspec.Struct, omit_defaults=True):
    """The pooled output of one text.

    data: numbers (a list for each token or part of a text, if that was requested), or base64 of them.
    late_chunking: as in `Embedding`.
    """

    object: str
    index: int
    data: list[Any] | str
    late_chunking: LateChunkingMetadata | UnsetType = UNSET


class Classes(msgspec.Struct):
    """The classes of one text. label: the name of the most likely class. probs: a number for each class."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Score(msgspec.Struct):
    """The score of one pair."""

    object: str
    index: int
    score: float


class ListAnswer(msgspec.Struct, kw_only=True):
    """The common fields of these answers."""

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


class ClassifyAnswer(ListAnswer, kw_only=True):
    """The answer to /classify."""

    data: list[Classes]


class ScoreAnswer(ListAnswer, kw_only=True):
    """The answer to /score."""

    data: list[Score]


class Document(msgspec.Struct):
    """A document of the request."""

    text: str


class Ranked(msgspec.Struct, omit_defaults=True):
    """A document with its score. index: position in the request."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class ApiVersion(msgspec.Struct):
    """The version of Cohere's API."""

    version: str


class BilledUnits(msgspec.Struct, omit_defaults=True):
    """The units that Cohere would bill. search_units: one per hundred documents of a query. input_tokens: of texts."""

    search_units: int | UnsetType = UNSET
    input_tokens: int | UnsetType = UNSET


class RerankMeta(msgspec.Struct):
    """The additional data in Cohere's answers."""

    api_version: ApiVersion
    billed_units: BilledUnits


class RerankAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The documents, best first, in the form of Jina and Cohere."""

    id: str
    model: str
    usage: Usage
    results: list[Ranked]
    meta: RerankMeta | UnsetType = UNSET
