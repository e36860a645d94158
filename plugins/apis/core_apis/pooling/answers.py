"""Conversion of pooled outputs into the bodies of answers.

Owns: these bodies, by the kind of the request. Never does: run a request, or send. Called by: the pooling routes, in a
thread if there are many numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import Response
from msgspec import UNSET, UnsetType

from core_apis.answers.json_pieces import JsonPieces, slices
from core_apis.body import PiecesResponse
from core_apis.pooling.vector_bytes import bits, packed
from core_apis.prepare.prepared import (
    PreparedClasses,
    PreparedEmbed,
    PreparedEmbedding,
    PreparedHidden,
    PreparedPooling,
    PreparedRerank,
    PreparedScore,
)
from core_apis.protocol.embed import EmbedAnswer, Vectors
from core_apis.protocol.pooled import (
    ApiVersion,
    BilledUnits,
    Classes,
    ClassifyAnswer,
    Document,
    Embedding,
    EmbeddingAnswer,
    Pooled,
    PoolingAnswer,
    Ranked,
    RerankAnswer,
    RerankMeta,
    Score,
    ScoreAnswer,
)
from core_apis.protocol.pooling import EmbeddingRequest
from core_apis.protocol.usage import Usage
from core_frontend.api.late_chunking import LateChunkingMetadata
from core_frontend.api.pooling_outputs import Float32, WholeOutput, cosine
from core_frontend.prompts.late_chunks import late_chunks

Outputs = Sequence[WholeOutput]
Lists = JsonPieces
"""The writer of the long lists of an answer."""
Answer = TypeVar("Answer", EmbeddingAnswer, PoolingAnswer)
BYTES = "application/octet-stream"
DOCUMENTS_A_UNIT = 100


def usage_of(outputs: Outputs) -> Usage:
    """Return the token counts of all texts."""
    count = sum(len(output.prompt_token_ids) for output in outputs)
    return Usage(count, 0, count)


def num_entries(outputs: Outputs) -> int:
    """Return how many numbers and tokens of the texts have to be written."""
    return sum(output.outputs.data.size + len(output.prompt_token_ids) for output in outputs)


def embedding_answer(
    prepared: PreparedEmbedding, outputs: Outputs, answer_id: str, lists: Lists
) -> EmbeddingAnswer | Response:
    """Return the answer of /v1/embeddings."""
    return _vectors(prepared, outputs, answer_id, lists, EmbeddingAnswer, partial(Embedding, "embedding"))


def pooling_answer(
    prepared: PreparedHidden, outputs: Outputs, answer_id: str, lists: Lists
) -> PoolingAnswer | Response:
    """Return the answer of /pooling."""
    return _vectors(prepared, outputs, answer_id, lists, PoolingAnswer, partial(Pooled, "pooling"))


def _vectors(
    prepared: PreparedEmbedding,
    outputs: Outputs,
    answer_id: str,
    lists: Lists,
    kind: type[Answer],
    entry: Callable[..., Any],
) -> Answer | Response:
    """Return an answer of vectors in JSON, or their bytes. entry: makes one of its entries."""
    body = prepared.body
    created = int(time.time())
    if body.encoding_format in ("bytes", "bytes_only"):
        return _bytes_answer(body, outputs, answer_id, prepared.model, created)
    data = []
    for index, output in enumerate(outputs):
        parts = _parts(prepared, index, output)
        data.append(entry(index, _written(output.outputs.data, body, lists), parts))
    listed = lists.entries(data)
    return kind(id=answer_id, created=created, model=prepared.model, data=listed, usage=usage_of(outputs))


def _parts(prepared: PreparedEmbedding, index: int, output: WholeOutput) -> LateChunkingMetadata | UnsetType:
    """Return the positions of a text's parts, if it was pooled in parts. They are recomputed for a truncated text."""
    chunks = prepared.params.late_chunking_params
    if chunks is None:
        return UNSET
    num_tokens = len(output.prompt_token_ids)
    found = prepared.parts[index]
    return found if found.input_tokens == num_tokens else late_chunks(num_tokens, chunks.chunk_size, None)


def classify_answer(prepared: PreparedClasses, outputs: Outputs, answer_id: str, lists: Lists) -> ClassifyAnswer:
    """Return the answer of /classify."""
    data = []
    for index, output in enumerate(outputs):
        numbers = output.outputs.data
        label = prepared.labels[int(numbers.argmax())]
        data.append(Classes(index, label, lists.numbers(numbers), len(numbers)))
    created = int(time.time())
    listed = lists.entries(data)
    return ClassifyAnswer(id=answer_id, created=created, model=prepared.model, data=listed, usage=usage_of(outputs))


def score_answer(prepared: PreparedScore, outputs: Outputs, answer_id: str, lists: Lists) -> ScoreAnswer:
    """Return the answer of /score."""
    num_second = len(outputs)
    if not prepared.pairs:
        _, second = prepared.body.sides()
        num_second = len(second)
    scores = _scores(prepared, outputs, num_second)
    data = lists.entries([Score("score", index, score) for index, score in enumerate(scores)])
    created = int(time.time())
    return ScoreAnswer(id=answer_id, created=created, model=prepared.model, data=data, usage=usage_of(outputs))


def rerank_answer(
    prepared: PreparedRerank, outputs: Outputs, answer_id: str, lists: Lists, api_version: str | None = None
) -> RerankAnswer:
    """Return the answer of /rerank: best documents first, ties in their order.

    api_version: of Cohere's API; None: another's.
    """
    body = prepared.body
    _, texts = body.sides()
    scores = _scores(prepared, outputs, len(texts))
    ranked: list[Ranked] = []
    for index, (score, text) in enumerate(zip(scores, texts, strict=True)):
        entry = Ranked(index, score)
        if body.return_documents is not False:
            entry.document = Document(str(text))
        ranked.append(entry)
    ranked.sort(key=lambda entry: -entry.relevance_score)
    best = ranked[: body.top_n] if body.top_n else ranked
    listed = lists.entries(best)
    answer = RerankAnswer(id=answer_id, model=prepared.model, usage=usage_of(outputs), results=listed)
    if api_version is not None:
        units = -(-len(texts) // DOCUMENTS_A_UNIT)
        answer.meta = RerankMeta(ApiVersion(api_version), BilledUnits(search_units=units))
    return answer


def embed_answer(
    prepared: PreparedEmbed, outputs: Outputs, answer_id: str, lists: Lists, api_version: str
) -> EmbedAnswer:
    """Return the answer of /v1/embed and /v2/embed. api_version: of Cohere's API."""
    texts = lists.entries([str(text) for text in prepared.body.texts()])
    units = BilledUnits(input_tokens=usage_of(outputs).prompt_tokens)
    meta = RerankMeta(ApiVersion(api_version), units)
    if api_version == "1" and prepared.body.embedding_types is None:
        plain = lists.entries([lists.numbers(output.outputs.data) for output in outputs])
        return EmbedAnswer(id=answer_id, embeddings=plain, texts=texts, meta=meta, response_type="embeddings_floats")
    vectors = [output.outputs.data for output in outputs]
    found = Vectors()
    for form in prepared.body.types:
        match form:
            case "float":
                found.floats = lists.entries([lists.numbers(vector) for vector in vectors])
            case "base64":
                found.base64 = lists.entries([lists.text([packed(vector)]) for vector in vectors])
            case "binary":
                found.binary = lists.entries([bits(vector, signed=True) for vector in vectors])
            case "ubinary":
                found.ubinary = lists.entries([bits(vector, signed=False) for vector in vectors])
    return EmbedAnswer(id=answer_id, embeddings=found, texts=texts, meta=meta)


def _scores(prepared: PreparedPooling, outputs: Outputs, num_second: int) -> list[float]:
    """Return the score of each pair: the model's, or the cosine of both vectors.

    num_second: texts of the second side.
    """
    if prepared.pairs:
        return [float(output.outputs.data[0]) for output in outputs]
    num_first = len(outputs) - num_second
    left = list(outputs[:num_first])
    if num_first == 1:
        left = left * num_second
    found = []
    for one, other in zip(left, outputs[num_first:], strict=True):
        found.append(cosine(one.outputs.data, other.outputs.data))
    return found


def _written(numbers: Float32, body: EmbeddingRequest, lists: Lists) -> Any:
    """Return numbers as JSON numbers, as base64 of their bytes, or packed as bits."""
    if body.encoding_format in ("binary", "ubinary"):
        signed = body.encoding_format == "binary"
        if numbers.ndim == 1:
            return bits(numbers, signed=signed)
        return lists.entries([row for rows in slices(numbers) for row in bits(rows, signed=signed)])
    if body.encoding_format == "base64":
        return lists.text(_packed(numbers, body))
    return lists.numbers(numbers)


def _packed(numbers: Float32, body: EmbeddingRequest) -> Iterator[bytes]:
    """Yield the bytes of numbers, in parts."""
    for rows in slices(numbers):
        yield packed(rows, body.embed_dtype or "float32", body.endianness or "little")


def _bytes_answer(body: EmbeddingRequest, outputs: Outputs, answer_id: str, model: str, created: int) -> Response:
    """Return all vectors concatenated; a header gives the position of each."""
    parts: list[bytes] = []
    places = []
    start = 0
    for index, output in enumerate(outputs):
        own = list(_packed(output.outputs.data, body))
        num_bytes = sum(map(len, own))
        parts += own
        place = {
            "index": index,
            "embed_dtype": body.embed_dtype or "float32",
            "endianness": body.endianness or "little",
            "start": start,
            "end": start + num_bytes,
            "shape": list(output.outputs.data.shape),
        }
        places.append(place)
        start += num_bytes
    headers = {}
    if body.encoding_format == "bytes":
        metadata = {"id": answer_id, "created": created, "model": model, "data": places, "usage": usage_of(outputs)}
        headers["metadata"] = msgspec.json.encode(metadata).decode("latin-1")
    return PiecesResponse(parts, BYTES, headers)
