"""Bodies of /v1/embeddings, /pooling, /classify, /score and /rerank, and their answers.

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
from core.serving.vector_bytes import Endianness, NumberFormat

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
        return PoolingParams(truncate_prompt_tokens=self.truncate_prompt_tokens)

    @property
    def prompt_named(self) -> str | None:
        """The name of the text in front of each text; None: the default one, if there is one."""
        return ""


class EmbeddingRequest(PoolingBody, forbid_unknown_fields=True, kw_only=True):
    """A body of /v1/embeddings.

    input: a text, token ids, or a list of either.
    encoding_format: numbers as JSON (float), base64 of them, or the answer's body is all vectors one behind the other (bytes,
        with a header `metadata` that says where each lies, or bytes_only, without it).
    embed_dtype, endianness: of base64 and bytes; float32, little-endian when left out.
    prompt_name: of the prompts in the checkpoint's files, the one that is put in front of each text; empty: none.
    """

    input: str | list[Any] | None = None
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] | None = None
    embed_dtype: NumberFormat | None = None
    endianness: Endianness | None = None
    prompt_name: str | None = None
    dimensions: Int32 | None = None
    use_activation: bool | None = None
    normalize: bool | None = None

    def texts(self) -> list[Text]:
        """The input as a list."""
        return texts_of("input", self.input)

    @property
    def prompt_named(self) -> str | None:
        """As the body says."""
        return self.prompt_name

    def params(self) -> PoolingParams:
        """One vector a text."""
        if self.encoding_format in (None, "float"):
            for name in ("embed_dtype", "endianness"):
                if getattr(self, name) is not None:
                    raise RequestError(f"{name} is of the encoding_format base64 and bytes; leave it out.", param=name)
        return PoolingParams(
            task="embed",
            dimensions=self.dimensions,
            use_activation=self.use_activation,
            normalize=self.normalize,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
        )


class PoolingRequest(EmbeddingRequest, forbid_unknown_fields=True, kw_only=True):
    """task: a vector a text (embed) or a token (token_embed), or the classes of either (classify, token_classify); None: the
    first of these that the model serves. activation: an older name of use_activation."""

    task: PoolingTask | None = None
    activation: bool | None = None

    def params(self) -> PoolingParams:
        """As the task says."""
        return msgspec.structs.replace(super().params(), task=self.task, activation=self.activation)


class ClassifyRequest(PoolingBody, forbid_unknown_fields=True, kw_only=True):
    """input: a text, token ids, or a list of either. use_activation: whether numbers become probabilities; activation: its
    older name."""

    input: str | list[Any] | None = None
    use_activation: bool | None = None
    activation: bool | None = None

    def texts(self) -> list[Text]:
        """The input as a list."""
        return texts_of("input", self.input)

    def params(self) -> PoolingParams:
        """The classes of texts."""
        return PoolingParams(
            task="classify",
            use_activation=self.use_activation,
            activation=self.activation,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
        )


class PairBody(PoolingBody, forbid_unknown_fields=True, kw_only=True):
    """Texts that are compared. instruction: what a template for pairs tells the model to look for.

    use_activation: whether the numbers of a model that reads pairs become probabilities; activation: its older name.
    """

    instruction: str | None = None
    use_activation: bool | None = None
    activation: bool | None = None

    def params(self) -> PoolingParams:
        """What the model serves first: vectors, or the classes of pairs."""
        return PoolingParams(
            use_activation=self.use_activation,
            activation=self.activation,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
        )

    def sides(self) -> tuple[list[Text], list[Text]]:
        """What is compared with what: one first text, or as many as second ones. Raises RequestError."""
        raise NotImplementedError

    def texts(self) -> list[Text]:
        """The first ones, then the second ones."""
        first, second = self.sides()
        return [*first, *second]


class ScoreRequest(PairBody, forbid_unknown_fields=True, kw_only=True):
    """text_1 is compared with text_2: one with each, or pair by pair. The other fields are other names of these."""

    text_1: str | list[Any] | None = None
    text_2: str | list[Any] | None = None
    data_1: str | list[Any] | None = None
    data_2: str | list[Any] | None = None
    queries: str | list[Any] | None = None
    documents: str | list[Any] | None = None
    items: str | list[Any] | None = None

    @property
    def text_field(self) -> str:
        """The field with most of the texts."""
        return self._names()[1]

    def sides(self) -> tuple[list[Text], list[Text]]:
        """Both lists."""
        one, other = self._names()
        first = texts_of(one, getattr(self, one))
        second = texts_of(other, getattr(self, other))
        if len(first) not in (1, len(second)):
            raise RequestError(
                f"{one} has {len(first)} texts and {other} {len(second)}; expected one, or as many.", param=one
            )
        return first, second

    def _names(self) -> tuple[str, str]:
        """The fields that are given. Raises RequestError for a mixture."""
        given = {name for pair in SCORED for name in pair if getattr(self, name) is not None}
        for pair in SCORED:
            if given and given <= set(pair):
                return pair
        if given:
            raise RequestError(
                f"{' and '.join(sorted(given))} are names of the same; expected text_1 and text_2.", param=min(given)
            )
        return SCORED[0]


SCORED = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))
"""The fields that hold the two sides."""


class RerankRequest(PairBody, forbid_unknown_fields=True, kw_only=True):
    """A body of /rerank.

    documents: texts, or objects with a `text`.
    top_n: how many of the best are wanted; None or 0: all.
    max_tokens_per_doc: of each document, this many first tokens count; None: all.
    """

    query: str | None = None
    documents: list[Any] | None = None
    top_n: Int32 | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)] | None = None

    @property
    def text_field(self) -> str:
        """The field with most of the texts."""
        return "documents"

    def sides(self) -> tuple[list[Text], list[Text]]:
        """The query, and the documents."""
        if self.query is None:
            raise RequestError(
                "The field 'query' is missing; the request needs it.", param="query", code="missing_field"
            )
        if self.top_n is not None and self.top_n < 0:
            raise RequestError(f"top_n is {self.top_n}; expected an integer from 0 on.", param="top_n")
        if not self.query:
            raise RequestError("query is empty; give text.", param="query", code="empty_prompt")
        plain: list[Text] = []
        for document in self.documents or []:
            text = document.get("text") if isinstance(document, dict) else document
            if not isinstance(text, str) or not text:
                plain = []
                break
            plain.append(text)
        if not plain:
            raise RequestError(
                "documents must be a list of texts, or of objects with a 'text', none of them empty, with at least one entry.",
                param="documents",
                code="invalid_type",
            )
        return [self.query], plain


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


class Classes(msgspec.Struct):
    """label: the name of the largest class. probs: a number for each class."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


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


class ClassifyAnswer(ListAnswer, kw_only=True):
    """The answer to /classify."""

    data: list[Classes]


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


class ApiVersion(msgspec.Struct):
    """version: of Cohere's API."""

    version: str


class BilledUnits(msgspec.Struct):
    """search_units: one for each hundred documents of a query, as Cohere counts."""

    search_units: int


class RerankMeta(msgspec.Struct):
    """What Cohere's answers tell besides."""

    api_version: ApiVersion
    billed_units: BilledUnits


class RerankAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The best documents first, as Jina and Cohere write it."""

    id: str
    model: str
    usage: Usage
    results: list[Ranked]
    meta: RerankMeta | UnsetType = UNSET
