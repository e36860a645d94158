"""The OpenAPI document: what every route takes and answers.

Owns: the table of operations and the document made from it. Never does: route, or check a request. Called by:
`core.serving.app`; a route that is not in the table is an error of ours (KeyError), which a test would see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from core.serving.errors import ErrorBody
from core.serving.middleware import OPEN
from core.serving.protocol.chat import ChatChunk, ChatRequest, ChatResponse
from core.serving.protocol.completions import CompletionRequest, CompletionResponse
from core.serving.protocol.operation import ModelCard, ModelList, ResetAnswer, VersionAnswer
from core.serving.protocol.response_events import ResponseEvent
from core.serving.protocol.response_objects import DeletedResponse, ItemList, ResponseObject
from core.serving.protocol.responses import ResponsesRequest
from core.serving.protocol.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse

JSON = "application/json"
EVENTS = "text/event-stream"
TEXT = "text/plain"
SCHEMAS = "#/components/schemas/"

STATUSES = {
    400: "The request is wrong; `param` names the field.",
    401: "The API key is missing or wrong.",
    404: "There is no such model or response.",
    405: "The path does not take this method; the header `Allow` names those that it does.",
    408: "The request did not come in time, or its `timeout` is over.",
    409: "Requests that run stand in the way; try again when they have ended.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too many requests wait; the header `Retry-After` says when to try again.",
    431: "The request's line and headers are too large.",
    500: "The server failed on this request.",
    503: "The engine is not running, or all connections are busy.",
}
ALWAYS = (400, 405, 408, 431, 500, 503)
BODY = (413, 415)


@dataclass(frozen=True, slots=True)
class Operation:
    """A route, as it is asked and as it answers.

    answer: JSON of this struct, or the media type of a plain text; None: an empty body.
    body: JSON of this struct; None: nothing.
    chunk: what the events of a stream hold.
    marks_end: whether a stream ends with `[DONE]`.
    deletion: JSON of this struct answers DELETE, where the path takes that, too.
    errors: statuses besides ALWAYS.
    """

    answer: type[msgspec.Struct] | str | None = None
    body: type[msgspec.Struct] | None = None
    chunk: type[msgspec.Struct] | None = None
    marks_end: bool = True
    deletion: type[msgspec.Struct] | None = None
    errors: tuple[int, ...] = ()


OPERATIONS: dict[str, Operation] = {
    "/v1/models": Operation(ModelList),
    "/v1/models/{name}": Operation(ModelCard, errors=(404,)),
    "/v1/completions": Operation(CompletionResponse, CompletionRequest, CompletionResponse, errors=(*BODY, 404, 429)),
    "/v1/chat/completions": Operation(ChatResponse, ChatRequest, ChatChunk, errors=(*BODY, 404, 429)),
    "/v1/responses": Operation(
        ResponseObject, ResponsesRequest, ResponseEvent, marks_end=False, errors=(*BODY, 404, 409, 429)
    ),
    "/v1/responses/{response_id}": Operation(
        ResponseObject, chunk=ResponseEvent, marks_end=False, deletion=DeletedResponse, errors=(404,)
    ),
    "/v1/responses/{response_id}/cancel": Operation(ResponseObject, errors=(404,)),
    "/v1/responses/{response_id}/input_items": Operation(ItemList, errors=(404,)),
    "/tokenize": Operation(TokenizeResponse, TokenizeRequest, errors=(*BODY, 404)),
    "/detokenize": Operation(DetokenizeResponse, DetokenizeRequest, errors=(*BODY, 404)),
    "/reset_prefix_cache": Operation(ResetAnswer, errors=(409,)),
    "/health": Operation(),
    "/ping": Operation(),
    "/version": Operation(VersionAnswer),
    "/metrics": Operation(TEXT),
}


def document(app: FastAPI, *, keys: bool) -> dict[str, Any]:
    """The document of `app`. keys: whether requests need one."""
    made = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for path, methods in made["paths"].items():
        known = OPERATIONS[path]
        guarded = keys and path not in OPEN
        errors = {*ALWAYS, *known.errors}
        if guarded:
            errors.add(401)
        responses = {"200": _success(known)}
        for status in sorted(errors):
            responses[str(status)] = _error(status)
        for method, operation in methods.items():
            operation["responses"] = responses
            if method == "delete" and known.deletion is not None:
                operation["responses"] = responses | {"200": _told(known.deletion)}
            if known.body is not None:
                operation["requestBody"] = {"required": True, "content": _json(known.body)}
            if guarded:
                operation["security"] = [{"ApiKey": []}]
    made["components"] = _components(keys)
    return made


def _success(known: Operation) -> dict[str, Any]:
    if known.answer is None:
        return {"description": "Yes; the body is empty."}
    content: dict[str, Any] = {}
    if isinstance(known.answer, str):
        content[known.answer] = {"schema": {"type": "string"}}
    else:
        content |= _json(known.answer)
    if known.chunk is not None:
        end = ", then `data: [DONE]`" if known.marks_end else ""
        told = f"With `stream`: lines `data: {known.chunk.__name__}`{end}."
        content[EVENTS] = {"schema": {"type": "string", "description": told}}
    return {"description": "The answer.", "content": content}


def _told(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {"description": "The answer.", "content": _json(struct)}


def _error(status: int) -> dict[str, Any]:
    return {"$ref": f"#/components/responses/Error{status}"}


def _json(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """A body in JSON."""
    schema = {"$ref": SCHEMAS + struct.__name__}
    return {JSON: {"schema": schema}}


def _components(keys: bool) -> dict[str, Any]:
    structs: list[type[msgspec.Struct]] = [ErrorBody]
    for known in OPERATIONS.values():
        for struct in (known.answer, known.body, known.chunk, known.deletion):
            if isinstance(struct, type):
                structs.append(struct)
    distinct = dict.fromkeys(structs)
    _, schemas = msgspec.json.schema_components(distinct, ref_template=SCHEMAS + "{name}")
    content = _json(ErrorBody)
    responses = {}
    for status, told in STATUSES.items():
        responses[f"Error{status}"] = {"description": told, "content": content}
    components: dict[str, Any] = {"schemas": schemas, "responses": responses}
    if keys:
        components["securitySchemes"] = {"ApiKey": {"type": "http", "scheme": "bearer"}}
    return components
