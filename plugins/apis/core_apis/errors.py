"""Errors in the form that clients expect.

OpenAI's clients: {"error": {"message", "type", "param", "code"}}. On the paths of the Messages API, Anthropic's:
{"type": "error", "error": {"type", "message"}}.

Owns: the error bodies, the status of each exception, the handlers of the app. Never does: decide what is an error.
Called by: `core_apis.app`, middleware and event streams.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from core.api.errors import CoreError, EngineDeadError, EngineStalledError, RequestError, nearest
from core_apis.protocol.anthropic_answer import MessagesError, MessagesErrorObject
from core_apis.server.middleware import PathSet, request_id_of

logger = logging.getLogger("core_apis")

CLIENT_CLOSED_REQUEST = 499
CONTEXT_EXCEEDED = "context_length_exceeded"
TOO_LONG = "Prompt is too long."
"""The phrase that clients of the Messages API search for in an error; they then shorten the conversation."""

MESSAGES = PathSet(("/v1/messages", "/v1/messages/{rest:path}"))
"""The paths whose errors are of Anthropic's shape."""

MESSAGES_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        408: "timeout_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
    }
)
"""Anthropic's error types by HTTP status; other statuses give `invalid_request_error` or `api_error`."""

NEEDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
            "--enable-lora, --lora-directory and --allow-runtime-lora-updating",
        ),
        **dict.fromkeys(("/v1/files", "/v1/batches"), "--batch-directory"),
        **dict.fromkeys(("/sleep", "/wake_up", "/is_sleeping"), "--enable-sleep-mode"),
        **dict.fromkeys(("/start_profile", "/stop_profile"), "--profiler-config"),
        **dict.fromkeys(
            ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"),
            "--weight-transfer-config",
        ),
        **dict.fromkeys(("/pause", "/resume", "/is_paused"), "--enable-sleep-mode or --weight-transfer-config"),
        **dict.fromkeys(("/drain_engine", "/undrain_engine", "/rebalance_engines"), "--data-parallel-size"),
        **dict.fromkeys(
            ("/scale_elastic_ep", "/is_scaling_elastic_ep"), "--enable-elastic-ep --elastic-ep-max-dp-size N"
        ),
        "/collective_rpc": "--worker-extension-cls or --weight-transfer-config",
    }
)
"""The arguments with which a server has paths that vLLM's clients expect."""

UNSERVED: Mapping[str, str] = MappingProxyType(
    {
        "/cohere/v2/chat": "Send chats to /v1/chat/completions.",
        "/v1/audio/speech": "Models that speak are not served.",
        "/v1/images/generations": "Models that paint are not served.",
        "/v1/moderations": "Ask a model of classes at /classify (--runner pooling).",
        **dict.fromkeys(
            ("/v1/messages/render", "/v1/responses/render"),
            "Render the same conversation with /v1/chat/completions/render.",
        ),
        **dict.fromkeys(
            ("/fault_tolerance/apply", "/fault_tolerance/status"),
            "An engine that dies is followed by another in any case; GET /health tells of it.",
        ),
        "/start_draft_weight_update": "Weights of a draft are those of the start.",
        "/update_weight_version": "The version of weights comes with them: `weight_version` of /finish_weight_update.",
        "/weight_checker": "--state-canary compares weights with those of earlier starts.",
        "/release_kv_cache_memory": "POST /sleep?level=1 releases weights and KV cache.",
        "/kv_event_sources": "--kv-events-config names the address of the events.",
    }
)
"""What to use instead of paths of vLLM's server that this one does not have."""

LONGEST_MESSAGE = 2000
LONGEST_PARAM = 200
"""Maximum length in characters of the field name in an error."""


class GenerationError(CoreError):
    """One request failed in the engine; the message says why."""


def ended_early() -> RequestError:
    """Return the error of an answer that the server ended by itself, as /pause, /sleep and weight updates may."""
    return RequestError(
        "The server ended this answer early: it was paused, put to sleep or given new weights. Ask again in a few seconds.",
        status=503,
        code="server_busy",
        retry_after=1,
    )


class ClientGone(CoreError):
    """The client closed its connection before the answer was ready."""


class ErrorObject(msgspec.Struct):
    """OpenAI's error object. param: the field of the request that is wrong, if there is one."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body with OpenAI's error object."""

    error: ErrorObject


def describe(error: Exception) -> tuple[int, ErrorBody]:
    """Return HTTP status and body for `error`. An unknown exception becomes a 500 without details."""
    if isinstance(error, RequestError):
        return error.status, ErrorBody(_describe_request(error))
    status = 500
    told = ErrorObject("The server failed on this request; its log says why.", "server_error")
    if isinstance(error, EngineDeadError):
        status = 503
        told = ErrorObject(str(error), "service_unavailable", code="engine_dead")
    elif isinstance(error, EngineStalledError):
        status = 503
        told = ErrorObject(str(error), "service_unavailable", code="engine_stalled")
    elif isinstance(error, CoreError):
        told = ErrorObject(str(error), "server_error", code="generation_failed")
    return status, ErrorBody(told)


def _describe_request(error: RequestError) -> ErrorObject:
    kind = "invalid_request_error"
    if error.status == 429:
        kind = "rate_limit_error"
    elif error.status >= 500:
        kind = "server_error"
    param = error.param
    if param is not None:
        param = _cut(param, LONGEST_PARAM)
    return ErrorObject(_cut(str(error), LONGEST_MESSAGE), kind, param, error.code)


def _cut(text: str, most: int) -> str:
    """Cut the middle out of a text longer than `most` characters: errors quote what clients sent, which may be
    anything.
    """
    if len(text) <= most:
        return text
    begin = text[: most // 2]
    end = text[-most // 2 :]
    return f"{begin} … {end}"


def error_response(error: Exception, headers: dict[str, str] | None = None, scope: Scope | None = None) -> Response:
    """Return the response to a failed request. scope: of the request, if there is one; it decides the body's shape."""
    status, body = describe(error)
    headers = dict(headers or {})
    if isinstance(error, RequestError) and error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    shaped: ErrorBody | MessagesError = body
    if scope is not None and MESSAGES.has(scope):
        shaped = _messages_error(status, body)
        headers["request-id"] = request_id_of(scope)
    return Response(msgspec.json.encode(shaped), status, headers, "application/json")


def messages_error_event(error: Exception) -> bytes:
    """Return the last event of a failed stream of the Messages API."""
    shaped = _messages_error(*describe(error))
    return b"event: error\ndata: " + msgspec.json.encode(shaped) + b"\n\n"


def _messages_error(status: int, body: ErrorBody) -> MessagesError:
    message = body.error.message
    if body.error.code == CONTEXT_EXCEEDED:
        message = f"{TOO_LONG} {message}"
    kind = MESSAGES_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return MessagesError(MessagesErrorObject(kind, message))


def error_event(error: Exception) -> bytes:
    """Return the last event of a failed stream."""
    _, body = describe(error)
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def install(app: FastAPI, paths: Sequence[str]) -> None:
    """Install handlers in `app` for everything that a route may raise.

    paths: the known paths, which a wrong path is compared with.
    """

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _http_error(request, error, paths)

    app.add_exception_handler(CoreError, _on_error)
    app.add_exception_handler(ClientDisconnect, _on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, _on_error)


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, (ClientGone, ClientDisconnect)):
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if isinstance(error, CoreError) and request.app.state.context.server.log_error_stack:
        logger.warning("%s %s is refused.", request.method, request.url.path, exc_info=error)
    # The server closes the connection after an unexpected exception; a client that is told so sends nothing more on it.
    headers = None if isinstance(error, CoreError) else {"connection": "close"}
    return error_response(error, headers, request.scope)


def _http_error(request: Request, error: HTTPException, paths: Sequence[str]) -> Response:
    """Return the response to a request that matches no route."""
    path = request.url.path
    headers = dict(error.headers or {})
    message = str(error.detail)
    code = None
    if error.status_code == 404:
        needed = nearest(path, paths)
        if path in NEEDS:
            needed = f" It is served with {NEEDS[path]}."
        elif path in UNSERVED:
            needed = f" {UNSERVED[path]}"
        message = f"There is nothing at {path}.{needed}"
        code = "not_found"
    elif error.status_code == 405:
        # The framework names the methods of the first route with this path alone.
        headers = {name: value for name, value in headers.items() if name.lower() != "allow"}
        allowed = headers["allow"] = _methods(request)
        message = f"{path} does not take {request.method}; it takes {allowed}."
        code = "method_not_allowed"
    refused = RequestError(message, status=error.status_code, code=code)
    return error_response(refused, headers, request.scope)


def _methods(request: Request) -> str:
    """Return the methods that the routes of a request's path take, as the header `Allow` lists them."""
    found: set[str] = set()
    for route in _routes(request.app.routes):
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= set(getattr(route, "methods", None) or ())
    return ", ".join(sorted(found))


def _routes(routes: Iterable[Any]) -> Iterator[Any]:
    """Yield the routes themselves, also those of routers that were included, which newer versions of FastAPI keep whole."""
    for route in routes:
        router = getattr(route, "original_router", None)
        if router is None:
            yield route
        else:
            yield from _routes(router.routes)
