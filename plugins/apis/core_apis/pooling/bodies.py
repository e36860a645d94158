"""The six kinds of pooling requests as one table, and the paths under which they are served.

A kind says what it takes and how its answer is written. What the engine computes for a text follows from the task that
its body asks for: float32 [H], or [T, H] where each token has an answer of its own, already truncated, normalized and
activated (`core.api.pooling.PoolingConfig.of_task`).

Owns: the table, and the kinds of bodies in it. Never does: prepare a body, or import HTTP modules. Called by:
`core_apis.apis`, the routes and the OpenAPI document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from core.api.errors import UNREADABLE
from core_apis.body_kinds import BodyKind, json_of
from core_apis.pooling.answers import (
    Write,
    classify_answer,
    embed_answer,
    embedding_answer,
    pooling_answer,
    rerank_answer,
    score_answer,
)
from core_apis.pooling.preparation import PoolingPreparation
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import PreparedPooling
from core_apis.protocol.embed import EmbedAnswer, EmbedRequest
from core_apis.protocol.pairs import PairBody, RerankRequest, ScoreRequest
from core_apis.protocol.pooled import ClassifyAnswer, EmbeddingAnswer, PoolingAnswer, RerankAnswer, ScoreAnswer
from core_apis.protocol.pooling import ClassifyRequest, EmbeddingRequest, PoolingBody, PoolingRequest


@dataclass(frozen=True, slots=True)
class PoolingKind:
    """One row.

    name:   the name that exchanges and the journal use.
    takes:  the form of its body, which knows its texts and their task.
    gives:  the form of its answer in JSON.
    write:  makes the answer of the pooled texts.
    prefix: of the answer's id.
    """

    name: str
    takes: type[PoolingBody]
    gives: type[msgspec.Struct]
    write: Write
    prefix: str

    @property
    def body(self) -> BodyKind:
        """Return the kind of its body."""
        prepared: Any = PreparedPooling
        return BodyKind(
            name=self.name,
            decode=json_of(self.takes),
            prepare=_prepared,
            result=prepared[self.takes],
            pairs=issubclass(self.takes, PairBody),
            peek=_has_conversation,
        )


class _Conversing(msgspec.Struct):
    """The fields of a body that may render a template."""

    messages: Any = None
    inputs: Any = None
    images: Any = None


def _has_conversation(data: bytes) -> bool:
    """Whether a body may render a template. One that cannot be read does not: its preparation refuses it."""
    try:
        found = msgspec.json.decode(data, type=_Conversing)
    except UNREADABLE:
        return False
    return any(value is not None for value in (found.messages, found.inputs, found.images))


def _prepared(preparation: Preparation, body: PoolingBody) -> PreparedPooling[Any]:
    """Prepare a decoded body for the engine. Raises RequestError."""
    model = preparation.check_model(body.model)
    return preparation.once(PoolingPreparation).prepare(body, model)


EMBEDDING: Final = PoolingKind("embedding", EmbeddingRequest, EmbeddingAnswer, embedding_answer, "embd")
EMBED: Final = PoolingKind("embed", EmbedRequest, EmbedAnswer, embed_answer, "embd")
POOLING: Final = PoolingKind("pooling", PoolingRequest, PoolingAnswer, pooling_answer, "pool")
CLASSIFY: Final = PoolingKind("classify", ClassifyRequest, ClassifyAnswer, classify_answer, "classify")
SCORE: Final = PoolingKind("score", ScoreRequest, ScoreAnswer, score_answer, "score")
RERANK: Final = PoolingKind("rerank", RerankRequest, RerankAnswer, rerank_answer, "rerank")
BODIES: Final = tuple(kind.body for kind in (EMBEDDING, EMBED, POOLING, CLASSIFY, SCORE, RERANK))


class PoolingPath(NamedTuple):
    """A path under which a kind is served.

    name, says: of its operation, for the OpenAPI document.
    version:    of Cohere's API, in the answer; empty: the answer has none.
    """

    path: str
    kind: PoolingKind
    name: str
    says: str
    version: str = ""


MATCH: Final = "Score how well the texts of each pair match."
UNDER: Final = "Rank documents under the path of"
PATHS: Final = (
    PoolingPath("/v1/embeddings", EMBEDDING, "create_embedding", "Embed texts: one vector per text."),
    PoolingPath("/v2/embed", EMBED, "embed", "Embed texts in the shape of Cohere's API.", "2"),
    PoolingPath(
        "/v1/embed", EMBED, "embed_v1", "Embed texts under the path of the first version of Cohere's API.", "1"
    ),
    PoolingPath(
        "/pooling", POOLING, "pool", "Pool texts: one vector per text, or one per token; or the classes of either."
    ),
    PoolingPath("/v1/classify", CLASSIFY, "classify", "Classify texts."),
    PoolingPath("/classify", CLASSIFY, "classify", "Classify texts."),
    PoolingPath("/v1/score", SCORE, "score", MATCH),
    PoolingPath("/score", SCORE, "score", MATCH),
    PoolingPath("/rerank", RERANK, "rerank", "Rank documents by how well they match a query."),
    PoolingPath("/v1/rerank", RERANK, "rerank_v1", f"{UNDER} Jina's API, and of the first version of Cohere's.", "1"),
    PoolingPath("/v2/rerank", RERANK, "rerank_v2", f"{UNDER} the second version of Cohere's API.", "2"),
)
