"""The routes of an API, each with the class of callers that may use it.

Owns: `ApiRoutes`, how the engine's own routes are made of a module, and how a row becomes a route. Never does: mount or
guard them (`core_apis.callers.access` does). Called by: APIs, `core_apis.app`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from core_apis.callers.access import Access, access_of
from core_apis.exchange import Exchange
from core_apis.openapi import BODY, OPERATIONS, Operation
from core_apis.pipeline import answered


@dataclass(frozen=True, slots=True)
class ApiRoutes:
    """A group of routes that one API mounts.

    router:     the router with the routes.
    access:     the class of each path. A path without one aborts the start.
    operations: requests and answers of the paths that the OpenAPI document shows.
    exchanges:  the rows of the exchange routes.
    """

    router: APIRouter
    access: Mapping[str, Access]
    operations: Mapping[str, Operation]
    exchanges: Sequence[Exchange] = ()


def own_routes(module: ModuleType) -> ApiRoutes:
    """Return the routes of a module of `core_apis.routes`. Raises KeyError for a path without a class."""
    paths = [route.path_format for route in module.router.routes if isinstance(route, APIRoute)]
    access = {path: access_of(path) for path in paths}
    operations = {path: OPERATIONS[path] for path in paths if path in OPERATIONS}
    return ApiRoutes(module.router, access, operations, getattr(module, "EXCHANGES", ()))


def exchange_routes(
    path: str,
    exchange: Exchange,
    *,
    access: Access,
    body: type[msgspec.Struct],
    answer: type[msgspec.Struct],
    name: str = "",
    summary: str = "",
) -> ApiRoutes:
    """Make a POST route for `path` that a row answers.

    body, answer: their forms, for the OpenAPI document. name: of the operation in it.
    """
    router = APIRouter(tags=["apis"])

    async def endpoint(request: Request) -> Response:
        return await answered(request, exchange)

    router.add_api_route(path, endpoint, methods=["POST"], name=name or exchange.kind, description=summary)
    operation = Operation(answer, body, errors=(*BODY, 404, 429))
    return ApiRoutes(router, {path: access}, {path: operation}, (exchange,))
