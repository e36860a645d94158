"""POST /v1/quote: what a request would take if it came now.

Owns: the route, and which paths have requests that can be quoted. Never does: foretell, or run anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from core.api.errors import RequestError, nearest
from core_apis.body import json_response
from core_apis.callers.tenant import Tenant
from core_apis.context import ServingContext, context_of, tenant_of, user_of
from core_apis.generation import PromptRun
from core_apis.intake import intake
from core_apis.pooling.bodies import PATHS
from core_apis.query import check_names
from core_apis.routes.responses import prepare_response_of
from core_apis.sessions.joining import HEADER

router = APIRouter(tags=["generation"])

PATH: Final = "/v1/quote"
USUAL: Final = "/v1/chat/completions"
WRITES: Final[Mapping[str, str]] = MappingProxyType(
    {USUAL: "chat", "/v1/completions": "completion", "/v1/responses": "response", "/v1/messages": "messages"}
)
"""The kind of body of each path that can be quoted, of a model that writes."""
POOLS: Final[Mapping[str, str]] = MappingProxyType({path.path: path.kind.name for path in PATHS})
"""The same of a model that pools."""


@router.post(PATH)
async def quote(request: Request) -> Response:
    """Say when a request would have its first token and its end, and what it would hold. The body is that of the request."""
    context, tenant = context_of(request), tenant_of(request)
    assert context.quotes is not None  # a server without quotes has no such route
    prepare = _preparation(context, tenant, request)
    if request.headers.get(HEADER):
        raise RequestError(f"A request in a session cannot be quoted; leave out the header {HEADER}.", param=HEADER)
    async with intake(context, request, tenant, prepare) as (prepared, arrival):
        runs = getattr(prepared, "chat", prepared)
        if getattr(runs.body, "session", None):
            raise RequestError("A request in a session cannot be quoted; leave out session.", param="session")
        body = getattr(prepared, "body", None) or runs.body
        run = PromptRun(context, runs, "quote", user_of(context, tenant, body.user), arrival)
        prompts = [(prompt, run.terms(index)) for index, prompt in enumerate(runs.prompts)]
        salt = getattr(runs.body, "cache_salt", None)
        return json_response(await context.quotes.quote(runs.model, prompts, runs.params, salt))


def _preparation(context: ServingContext, tenant: Tenant, request: Request) -> Callable[..., Any]:
    """Return what prepares the bodies of the path that the query names. Raises RequestError for another path."""
    check_names(request, "path")
    path = request.query_params.get("path", USUAL)
    here = context.preparer.here
    kinds = WRITES if here.settings.pooling is None else POOLS
    kind = kinds.get(path)
    if kind is None or kind not in here.bodies:
        known = [each for each, of in kinds.items() if of in here.bodies]
        raise RequestError(
            f"path is {path!r}, whose requests cannot be quoted; expected one of {', '.join(known)}.{nearest(path, known)}",
            param="path",
        )
    if kind == "response":
        return partial(prepare_response_of, context, tenant)
    return partial(context.preparer.prepare, kind, owner=context.tenants.name(tenant))
