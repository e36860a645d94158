"""The bodies of the pooling APIs. Owns: their rows. Never does: prepare one. Called by: `core.serving.apis`."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from core.serving.body_kinds import BodyKind, json_of
from core.serving.pooling_preparation import PoolingPreparation
from core.serving.preparation import Preparation
from core.serving.prepared import (
    PreparedClasses,
    PreparedEmbed,
    PreparedEmbedding,
    PreparedHidden,
    PreparedPooling,
    PreparedRerank,
    PreparedScore,
)
from core.serving.protocol.embed import EmbedRequest
from core.serving.protocol.pairs import RerankRequest, ScoreRequest
from core.serving.protocol.pooling import ClassifyRequest, EmbeddingRequest, PoolingBody, PoolingRequest


def _prepare(result: type[PreparedPooling], preparation: Preparation, body: PoolingBody) -> PreparedPooling:
    """A decoded body, ready for the engine. Raises RequestError."""
    model = preparation.check_model(body.model)
    return preparation.once(PoolingPreparation).prepare(body, model, result)


def _row(name: str, form: type[Any], result: type[PreparedPooling], *, pairs: bool = False) -> BodyKind:
    return BodyKind(name=name, decode=json_of(form), prepare=partial(_prepare, result), result=result, pairs=pairs)


BODIES: Final = (
    _row("embedding", EmbeddingRequest, PreparedEmbedding),
    _row("embed", EmbedRequest, PreparedEmbed),
    _row("pooling", PoolingRequest, PreparedHidden),
    _row("classify", ClassifyRequest, PreparedClasses),
    _row("score", ScoreRequest, PreparedScore, pairs=True),
    _row("rerank", RerankRequest, PreparedRerank, pairs=True),
)
