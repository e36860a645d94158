"""Access control: which callers may use which route.

Owns: the access class of every path of the engine's own APIs, the guard of all routes, and the refusal of callers who
are not the operator. Never does: check keys (`core_apis.callers.authentication` does). Called by: `core_apis.app`, which guards
each route according to its class, and the APIs.

The guard is part of the route, so a path cannot mean one thing to the guard and another to the router.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute

from core.api.errors import RequestError
from core_apis.callers.tenant import Tenant
from core_config.served.server_config import ServerConfig

Access = Literal["public", "tenant", "operator"]

_PUBLIC = (
    "/health",
    "/ping",
    "/ready",
    "/readyz",
    "/live",
    "/version",
    "/metrics",
    "/",
    "/page/{name}",
    "/docs",
    "/redoc",
    "/docs/{name}",
    "/openapi.json",
)
_TENANT = (
    "/v1/models",
    "/v1/models/{name}",
    "/v1/completions",
    "/v1/completions/{answer_id}",
    "/v1/chat/completions",
    "/v1/chat/completions/{answer_id}",
    "/v1/chat/completions/batch",
    "/generative_scoring",
    "/v1/generative_scoring",
    "/v1/responses",
    "/v1/responses/{response_id}",
    "/v1/responses/{response_id}/cancel",
    "/v1/responses/{response_id}/input_items",
    "/v1/files",
    "/v1/files/{file_id}",
    "/v1/files/{file_id}/content",
    "/v1/batches",
    "/v1/batches/{batch_id}",
    "/v1/batches/{batch_id}/cancel",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/sessions",
    "/v1/sessions/{name}",
    "/v1/sessions/{name}/fork",
    "/v1/sessions/{name}/rewind",
    "/v1/sessions/{name}/pin",
    "/v1/quote",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/embeddings",
    "/v1/embed",
    "/v2/embed",
    "/pooling",
    "/classify",
    "/v1/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/invocations",
    "/inference/v1/generate",
    "/v1/chat/completions/render",
    "/v1/chat/completions/derender",
    "/v1/completions/render",
    "/v1/completions/derender",
    "/tokenize",
    "/detokenize",
    "/tokenizer_info",
    "/load",
    "/live/requests",
)
_OPERATOR = (
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/abort_requests",
    "/inference/v1/abort_requests",
    "/server_info",
    "/live/configuration",
    "/start_profile",
    "/stop_profile",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/pause",
    "/resume",
    "/is_paused",
    "/drain_engine",
    "/undrain_engine",
    "/rebalance_engines",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/init_weight_transfer_engine",
    "/update_weights",
    "/start_weight_update",
    "/finish_weight_update",
    "/collective_rpc",
    "/get_world_size",
    "/weight_info",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
)

ACCESS: Mapping[str, Access] = {
    **dict.fromkeys(_PUBLIC, "public"),
    **dict.fromkeys(_TENANT, "tenant"),
    **dict.fromkeys(_OPERATOR, "operator"),
}
"""The access class of each path, keyed by the path as the OpenAPI document writes it.

public: no key is needed. tenant: any key. operator: routes that affect all tenants, or show the configuration.
"""


def access_of(path: str) -> Access:
    """Return the access class of one of the engine's own paths.

    Raises KeyError for a path that is not in `ACCESS`: add a new route there before it is mounted.
    """
    return ACCESS[path]


def operators(config: ServerConfig) -> frozenset[Tenant]:
    """Return the tenants that count as the operator.

    With an admin key: its holders. Without one, the holder of the only API key, or everybody if there are no keys at
    all. With several API keys and no admin key there is no operator.
    """
    first = len(config.api_keys)
    if config.admin_api_keys:
        return frozenset(range(first, first + len(config.admin_api_keys)))
    if first > 1:
        return frozenset()
    return frozenset({0 if first else None})


def mount(app: FastAPI, router: APIRouter, access: Mapping[str, Access], allowed: frozenset[Tenant]) -> None:
    """Add the routes of a router; routes of class `operator` get a guard.

    access: the class of each path. allowed: the tenants that are the operator.
    Raises KeyError for a path without a class.
    """

    async def operator_only(request: Request) -> None:  # a plain function would take a thread
        if request.scope.get("state", {}).get("api_key") not in allowed:
            raise _refusal(request.scope["path"])

    plain, operators_own = APIRouter(), APIRouter()
    for route in router.routes:
        assert isinstance(route, APIRoute)
        part = operators_own if access[route.path_format] == "operator" else plain
        part.routes.append(route)
    if plain.routes:
        app.include_router(plain)
    if operators_own.routes:
        app.include_router(operators_own, dependencies=[Depends(operator_only)])


def _refusal(path: str) -> RequestError:
    return RequestError(
        f"{path[:100]} is for the server's operator; expected one of the keys of --admin-api-key.",
        status=403,
        code="operator_only",
    )
