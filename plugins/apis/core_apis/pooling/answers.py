"""Conversion of pooled outputs into the bodies of answers.

Owns: these bodies, by the kind of the request. Never does: run a request, or send. Called by: the pooling routes, in a
thread if there are many numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from core_apis.answers.json_pieces import JsonPieces, slices
from core_apis.pooling.vector_bytes import bits, packed
from core_apis.prepare.prepared import Pooled as Body
from core_apis.prepare.prepared import PreparedPooling
from core_apis.protocol.embed import EmbedAnswer, EmbedRequest, Vectors
from core_apis.protocol.pairs import PairBody, RerankRequest, shown_text
from core_apis.protocol.pooled import (
    ApiVersion,
    BilledUnits,
    Classes,
    ClassifyAnswer,
    Document,
    Embedding,
    EmbeddingAnswer,
    ListAnswer,
    Pooled,
    PoolingAnswer,
    Ranked,
    RerankAnswer,
    RerankMeta,
    Score,
    ScoreAnswer,
)
from core_apis.protocol.pooling import ClassifyRequest, EmbeddingRequest
from core_apis.protocol.usage import Usage
from core_frontend.api.late_chunking import LateChunkingMetadata
from core_frontend.api.pooling_outputs import Float32, WholeOutput, similarity
from core_frontend.prompts.late_chunks import late_chunks
from core_frontend.prompts.text_pairs import partnered

Listed = TypeVar("Listed", bound=ListAnswer)
Pack = Callable[[Float32], bytes]
DOCUMENTS_A_UNIT = 100


@dataclass(frozen=True, slots=True)
class PooledTexts(Generic[Body]):
    """What an answer is made of.

    outputs: of all texts, in their order.
    version: of Cohere's API; empty: another's.
    lists:   the writer of long lists.
    """

    prepared: PreparedPooling[Body]
    outputs: Sequence[WholeOutput]
    answer_id: str
    version: str = ""
    lists: JsonPieces = field(default_factory=JsonPieces)

    @property
    def body(self) -> Body:
        """Return the request's body."""
        return self.prepared.body

    @property
    def vectors(self) -> list[Float32]:
        """Return the numbers of each text."""
        return [output.outputs.data for output in self.outputs]

    @property
    def usage(self) -> Usage:
        """Return the token counts of all texts."""
        count = sum(len(output.prompt_token_ids) for output in self.outputs)
        return Usage(count, 0, count)

    @property
    def num_entries(self) -> int:
        """Return how many numbers and tokens of the texts have to be written."""
        return sum(vector.size for vector in self.vectors) + self.usage.prompt_tokens

    def listed(self, form: type[Listed], entries: list[Any]) -> Listed:
        """Return an answer that is a list of entries."""
        data = self.lists.entries(entries)
        created = int(time.time())
        return form(id=self.answer_id, created=created, model=self.prepared.model, data=data, usage=self.usage)


class Plain(NamedTuple):
    """An answer that is bytes instead of JSON, and its own headers."""

    parts: list[bytes]
    headers: dict[str, str]


Write = Callable[[PooledTexts[Any]], msgspec.Struct | Plain]
"""A function that makes the answer of a kind."""


def embedding_answer(texts: PooledTexts[EmbeddingRequest]) -> EmbeddingAnswer | Plain:
    """Return the answer of /v1/embeddings."""
    return _vectors(texts, EmbeddingAnswer, partial(Embedding, "embedding"))


def pooling_answer(texts: PooledTexts[EmbeddingRequest]) -> PoolingAnswer | Plain:
    """Return the answer of /pooling."""
    return _vectors(texts, PoolingAnswer, partial(Pooled, "pooling"))


def _vectors(texts: PooledTexts[EmbeddingRequest], form: type[Listed], entry: Callable[..., Any]) -> Listed | Plain:
    """Return an answer of vectors in JSON, or their bytes. entry: makes one of its entries."""
    encoding = texts.body.encoding_format or "float"
    if encoding in ("bytes", "bytes_only"):
        return _plain(texts)
    pack = _pack(texts.body)
    data = []
    for index, output in enumerate(texts.outputs):
        written = _written(output.outputs.data, encoding, texts.lists, pack)
        data.append(entry(index, written, _parts(texts.prepared, index, output)))
    return texts.listed(form, data)


def _parts(prepared: PreparedPooling[Any], index: int, output: WholeOutput) -> LateChunkingMetadata | UnsetType:
    """Return the positions of a text's parts, if it was pooled in parts. They are recomputed for a truncated text."""
    chunks = prepared.params.late_chunking_params
    if chunks is None:
        return UNSET
    num_tokens = len(output.prompt_token_ids)
    found = prepared.parts[index]
    return found if found.input_tokens == num_tokens else late_chunks(num_tokens, chunks.chunk_size, None)


def classify_answer(texts: PooledTexts[ClassifyRequest]) -> ClassifyAnswer:
    """Return the answer of /classify."""
    data = []
    for index, numbers in enumerate(texts.vectors):
        label = texts.prepared.labels[int(numbers.argmax())]
        data.append(Classes(index, label, texts.lists.numbers(numbers), len(numbers)))
    return texts.listed(ClassifyAnswer, data)


def score_answer(texts: PooledTexts[PairBody]) -> ScoreAnswer:
    """Return the answer of /score."""
    return texts.listed(ScoreAnswer, [Score("score", index, score) for index, score in enumerate(_scores(texts))])


def rerank_answer(texts: PooledTexts[RerankRequest]) -> RerankAnswer:
    """Return the answer of /rerank: best documents first, ties in their order."""
    body = texts.body
    _, documents = body.sides()
    ranked: list[Ranked] = []
    for index, (score, text) in enumerate(zip(_scores(texts), documents, strict=True)):
        entry = Ranked(index, score)
        if body.return_documents is not False:
            entry.document = Document(shown_text(text))
        ranked.append(entry)
    ranked.sort(key=lambda entry: -entry.relevance_score)
    best = ranked[: body.top_n] if body.top_n else ranked
    results = texts.lists.entries(best)
    answer = RerankAnswer(id=texts.answer_id, model=texts.prepared.model, usage=texts.usage, results=results)
    if texts.version:
        units = BilledUnits(search_units=-(-len(documents) // DOCUMENTS_A_UNIT))
        answer.meta = RerankMeta(ApiVersion(texts.version), units)
    return answer


def embed_answer(texts: PooledTexts[EmbedRequest]) -> EmbedAnswer:
    """Return the answer of /v1/embed and /v2/embed."""
    lists = texts.lists
    shown = lists.entries(texts.body.shown)
    meta = RerankMeta(ApiVersion(texts.version), BilledUnits(input_tokens=texts.usage.prompt_tokens))
    forms = {}
    for form in texts.body.types:
        forms[form] = lists.entries([_written(vector, form, lists) for vector in texts.vectors])
    if texts.version == "1" and texts.body.embedding_types is None:
        return EmbedAnswer(
            id=texts.answer_id, embeddings=forms["float"], texts=shown, meta=meta, response_type="embeddings_floats"
        )
    vectors = Vectors(**{"floats" if form == "float" else form: written for form, written in forms.items()})
    return EmbedAnswer(id=texts.answer_id, embeddings=vectors, texts=shown, meta=meta)


def _scores(texts: PooledTexts[Any]) -> list[float]:
    """Return the score of each pair: the model's, or that of both texts' vectors."""
    vectors = texts.vectors
    if texts.prepared.pairs:
        return [float(numbers[0]) for numbers in vectors]
    first, _ = texts.body.sides()
    left, right = vectors[: len(first)], vectors[len(first) :]
    return [similarity(one, other) for one, other in zip(partnered(left, right), right, strict=True)]


def _written(numbers: Float32, form: str, lists: JsonPieces, pack: Pack = packed) -> Any:
    """Return numbers as JSON numbers, as base64 of their bytes, or packed as bits. pack: makes the bytes."""
    if form in ("binary", "ubinary"):
        signed = form == "binary"
        if numbers.ndim == 1:
            return bits(numbers, signed=signed)
        return lists.entries([row for rows in slices(numbers) for row in bits(rows, signed=signed)])
    if form == "base64":
        return lists.text(map(pack, slices(numbers)))
    return lists.numbers(numbers)


def _pack(body: EmbeddingRequest) -> Pack:
    """Return the function that makes the bytes of numbers in the format of a body."""
    return partial(packed, form=body.embed_dtype or "float32", order=body.endianness or "little")


def _plain(texts: PooledTexts[EmbeddingRequest]) -> Plain:
    """Return all vectors concatenated; a header gives the position of each."""
    body = texts.body
    pack = _pack(body)
    parts: list[bytes] = []
    places = []
    start = 0
    for index, vector in enumerate(texts.vectors):
        own = list(map(pack, slices(vector)))
        end = start + sum(map(len, own))
        parts += own
        place = {
            "index": index,
            "embed_dtype": body.embed_dtype or "float32",
            "endianness": body.endianness or "little",
            "start": start,
            "end": end,
            "shape": list(vector.shape),
        }
        places.append(place)
        start = end
    if body.encoding_format != "bytes":
        return Plain(parts, {})
    metadata = {
        "id": texts.answer_id,
        "created": int(time.time()),
        "model": texts.prepared.model,
        "data": places,
        "usage": texts.usage,
    }
    return Plain(parts, {"metadata": msgspec.json.encode(metadata).decode("latin-1")})
