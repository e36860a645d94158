"""/v1/embeddings, /v2/embed, /pooling, /classify, /score and /rerank: vectors and classes of texts, and numbers made of them.

Owns: a route for each path of `core_apis.pooling.bodies`. Never does: write answers (`pooling_answers` does).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fastapi import APIRouter, Request, Response

from core_apis.exchange import Exchange, id_with
from core_apis.pipeline import answered
from core_apis.pooling.bodies import PATHS, PoolingPath
from core_apis.pooling.writer import PooledAnswer

router = APIRouter(tags=["pooling"])


def _add(path: PoolingPath) -> Exchange:
    """Add the route of a path; return its row."""
    kind = path.kind
    exchange = Exchange(
        kind=kind.name, identify=id_with(kind.prefix), answer=partial(PooledAnswer, kind.write, path.version)
    )

    async def endpoint(request: Request) -> Response:
        return await answered(request, exchange)

    router.add_api_route(path.path, endpoint, methods=["POST"], name=path.name, description=path.says)
    return exchange


def _rows() -> tuple[Exchange, ...]:
    """Add all routes; return the row of the first path of each kind."""
    rows: dict[str, Exchange] = {}
    for path in PATHS:
        rows.setdefault(path.kind.name, _add(path))
    return tuple(rows.values())


EXCHANGES: Final = _rows()
