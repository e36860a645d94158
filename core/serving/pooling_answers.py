"""From pooled outputs to the bodies of answers.

Owns: these bodies, by the kind of the request. Never does: run a request. Called by: the pooling routes.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence

import numpy as np

from core.api.pooling_outputs import Float32, PoolingRequestOutput, cosine
from core.serving.protocol.pooling import (
    Document,
    Embedding,
    EmbeddingAnswer,
    EmbeddingRequest,
    Pooled,
    PoolingAnswer,
    PoolingRequest,
    Ranked,
    RerankAnswer,
    RerankRequest,
    Score,
    ScoreAnswer,
    ScoreRequest,
)
from core.serving.protocol.usage import Usage

Outputs = Sequence[PoolingRequestOutput]


def usage_of(outputs: Outputs) -> Usage:
    """The tokens of all texts."""
    count = sum(len(output.prompt_token_ids) for output in outputs)
    return Usage(count, 0, count)


def embedding_answer(body: EmbeddingRequest, outputs: Outputs, answer_id: str, model: str) -> EmbeddingAnswer:
    """Of /v1/embeddings."""
    data = []
    for index, output in enumerate(outputs):
        data.append(Embedding("embedding", index, _written(output.outputs.data, body.encoding_format)))
    created = int(time.time())
    return EmbeddingAnswer(id=answer_id, created=created, model=model, data=data, usage=usage_of(outputs))


def pooling_answer(body: PoolingRequest, outputs: Outputs, answer_id: str, model: str) -> PoolingAnswer:
    """Of /pooling."""
    data = []
    for index, output in enumerate(outputs):
        data.append(Pooled("pooling", index, _written(output.outputs.data, body.encoding_format)))
    created = int(time.time())
    return PoolingAnswer(id=answer_id, created=created, model=model, data=data, usage=usage_of(outputs))


def score_answer(body: ScoreRequest, outputs: Outputs, answer_id: str, model: str) -> ScoreAnswer:
    """Of /score: the cosine of each pair."""
    first, second = body.sides()
    left = list(outputs[: len(first)])
    right = outputs[len(first) :]
    if len(left) == 1:
        left = left * len(second)
    data = []
    for index, (one, other) in enumerate(zip(left, right, strict=True)):
        data.append(Score("score", index, cosine(one.outputs.data, other.outputs.data)))
    created = int(time.time())
    return ScoreAnswer(id=answer_id, created=created, model=model, data=data, usage=usage_of(outputs))


def rerank_answer(body: RerankRequest, outputs: Outputs, answer_id: str, model: str) -> RerankAnswer:
    """Of /rerank: documents by the cosine of their vectors and the query's; equal ones in their order."""
    query, *documents = outputs
    _, *texts = body.texts()
    ranked: list[Ranked] = []
    for index, (document, text) in enumerate(zip(documents, texts, strict=True)):
        entry = Ranked(index, cosine(query.outputs.data, document.outputs.data))
        if body.return_documents is not False:
            entry.document = Document(str(text))
        ranked.append(entry)
    ranked.sort(key=lambda entry: -entry.relevance_score)
    best = ranked[: body.top_n] if body.top_n else ranked
    return RerankAnswer(id=answer_id, model=model, usage=usage_of(outputs), results=best)


def _written(numbers: Float32, encoding: str | None) -> list[float] | str:
    """Numbers as JSON has them, or base64 of float32, little-endian."""
    if encoding == "base64":
        return base64.b64encode(numbers.astype(np.dtype("<f4")).tobytes()).decode()
    plain: list[float] = numbers.tolist()
    return plain
