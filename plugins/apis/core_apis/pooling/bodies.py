"""The bodies of the pooling APIs.

Owns: their rows. Never does: prepare one. Called by: `core_apis.apis`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from core_apis.body_kinds import BodyKind, json_of
from core_apis.pooling.preparation import PoolingPreparation
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import (
    PreparedClasses,
    PreparedEmbed,
    PreparedEmbedding,
    PreparedHidden,
    PreparedPooling,
    PreparedRerank,
    PreparedScore,
)
from core_apis.protocol.embed import EmbedRequest
from core_apis.protocol.pairs import RerankRequest, ScoreRequest
from core_apis.protocol.pooling import ClassifyRequest, EmbeddingRequest, PoolingBody, PoolingRequest


def _prepare(result: type[PreparedPooling], preparation: Preparation, body: PoolingBody) -> PreparedPooling:
    """Prepare a decoded body for the engine. Raises RequestError."""
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
