"""The OpenAPI document: the request and answer of every route.

Owns: the table of operations and the document made from it. Never does: route, or check a request. Called by:
`core_apis.app`; a route that is not in the table is a bug (KeyError), which a test would catch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from core_apis.audio.formats import TranscriptAnswer, TranscriptDelta, TranscriptDone, TranscriptForm
from core_apis.callers.access import Access
from core_apis.chats.forms import ChatsRequest
from core_apis.errors import ErrorBody
from core_apis.pooling.bodies import PATHS
from core_apis.protocol.adapters import AdapterAnswer, LoadAdapterRequest, UnloadAdapterRequest
from core_apis.protocol.anthropic import CountTokensRequest, MessagesRequest
from core_apis.protocol.anthropic_answer import MessagesAnswer, MessagesError, MessagesEvent, TokenCount
from core_apis.protocol.batches import (
    BatchList,
    BatchObject,
    CreateBatch,
    DeletedFile,
    FileList,
    FileObject,
    UploadForm,
)
from core_apis.protocol.chat import ChatChunk, ChatRequest, ChatResponse
from core_apis.protocol.completions import CompletionRequest, CompletionResponse
from core_apis.protocol.operation import (
    AbortAnswer,
    AbortRequest,
    HealthAnswer,
    LoadAnswer,
    ModelCard,
    ModelList,
    PausedAnswer,
    ProfileAnswer,
    ResetAnswer,
    ScaleRequest,
    ScalingAnswer,
    ServerInfo,
    SleepingAnswer,
    StatusAnswer,
    VersionAnswer,
)
from core_apis.protocol.quote import Quote
from core_apis.protocol.response_events import StreamedEvent
from core_apis.protocol.response_objects import DeletedResponse, ItemList, ResponseObject
from core_apis.protocol.responses import ResponsesRequest
from core_apis.protocol.sessions import DeletedSession, ForkRequest, RewindRequest, SessionAnswer, SessionList
from core_apis.protocol.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from core_apis.protocol.tokenizer_info import TokenizerInfo
from core_apis.protocol.weights import (
    BeginRequest,
    FinishRequest,
    InitRequest,
    RpcAnswer,
    RpcRequest,
    UpdateRequest,
    WeightInfo,
    WeightsAnswer,
    WorldSize,
)
from core_apis.scoring.forms import GenerativeScoringRequest, GenerativeScoringResponse
from core_apis.token_io.forms import (
    AnyAnswer,
    AnyBody,
    DerenderChat,
    DerenderCompletion,
    GenerateRequest,
    GenerateResponse,
)
from core_frontend.group.orders import Drained, Moved, Scaled

JSON = "application/json"
EVENTS = "text/event-stream"
TEXT = "text/plain"
FORM = "multipart/form-data"
SOUND_EVENTS = (TranscriptDelta, TranscriptDone)
SCHEMAS = "#/components/schemas/"

STATUSES = {
    400: "The request is wrong; `param` names the field.",
    401: "The API key is missing or wrong.",
    403: "The path is for the server's operator (--admin-api-key), or the operator does not allow this source.",
    404: "There is no such model, response, session or stream.",
    405: "The path does not take this method; the header `Allow` names those that it does.",
    408: "The request did not come in time, or its `timeout` is over.",
    409: "Requests that run stand in the way: try again when they have ended; or events of a stream were lost; or there are "
    "too many sessions.",
    413: "The body is too large.",
    415: "The body is not JSON, or not a form where one is expected.",
    429: "Too many requests wait; the header `Retry-After` says when to try again.",
    431: "The request's line and headers are too large.",
    500: "The server failed on this request.",
    503: "The engine is not running, all connections are busy, or the request journal cannot be written.",
}
KEY_SCHEMES = {
    "ApiKey": {"type": "http", "scheme": "bearer"},
    "ApiKeyHeader": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}
"""The ways to send a key; one is enough."""

ALWAYS = (400, 405, 408, 431, 500, 503)
BODY = (413, 415)


@dataclass(frozen=True, slots=True)
class Operation:
    """A route's request and answer.

    answer: JSON of this struct, or the media type of a plain text; None: an empty body.
    body: JSON of this struct; None: nothing.
    chunk: the struct of a stream's events; several if each event has its own name.
    errors: statuses besides ALWAYS.
    anthropic: whether errors are of Anthropic's shape.
    form: a form with the fields of this struct; None: the body is JSON, or nothing.
    deletion: JSON of this struct answers DELETE, if the path takes that, too.
    listing: JSON of this struct answers GET, if the path takes that and POST.
    """

    answer: type[msgspec.Struct] | str | None = None
    body: type[msgspec.Struct] | None = None
    chunk: type[msgspec.Struct] | tuple[type[msgspec.Struct], ...] | None = None
    errors: tuple[int, ...] = ()
    anthropic: bool = False
    deletion: type[msgspec.Struct] | None = None
    form: type[msgspec.Struct] | None = None
    listing: type[msgspec.Struct] | None = None


OPERATIONS: dict[str, Operation] = {
    "/v1/models": Operation(ModelList),
    "/v1/models/{name}": Operation(ModelCard, errors=(404,)),
    "/v1/completions": Operation(CompletionResponse, CompletionRequest, CompletionResponse, (*BODY, 404, 429)),
    "/v1/chat/completions": Operation(ChatResponse, ChatRequest, ChatChunk, (*BODY, 404, 429)),
    "/v1/chat/completions/batch": Operation(ChatResponse, ChatsRequest, errors=(*BODY, 404, 429)),
    **dict.fromkeys(
        ("/generative_scoring", "/v1/generative_scoring"),
        Operation(GenerativeScoringResponse, GenerativeScoringRequest, errors=(*BODY, 404, 429)),
    ),
    "/v1/completions/{answer_id}": Operation(EVENTS, errors=(404, 409)),
    "/v1/chat/completions/{answer_id}": Operation(EVENTS, errors=(404, 409)),
    "/v1/responses": Operation(
        ResponseObject, ResponsesRequest, get_args(StreamedEvent), errors=(*BODY, 404, 409, 429)
    ),
    "/v1/responses/{response_id}": Operation(
        ResponseObject, chunk=get_args(StreamedEvent), errors=(404, 409), deletion=DeletedResponse
    ),
    "/v1/responses/{response_id}/cancel": Operation(ResponseObject, errors=(404,)),
    "/v1/responses/{response_id}/input_items": Operation(ItemList, errors=(404,)),
    "/v1/messages": Operation(
        MessagesAnswer, MessagesRequest, get_args(MessagesEvent), (*BODY, 404, 429), anthropic=True
    ),
    "/v1/messages/count_tokens": Operation(TokenCount, CountTokensRequest, errors=(*BODY, 404, 429), anthropic=True),
    "/v1/quote": Operation(Quote, errors=(*BODY, 404, 429)),
    "/v1/files": Operation(FileObject, errors=(400, 413, 415, 503), listing=FileList, form=UploadForm),
    "/v1/files/{file_id}": Operation(FileObject, errors=(404,), deletion=DeletedFile),
    "/v1/files/{file_id}/content": Operation("application/octet-stream", errors=(404,)),
    "/v1/batches": Operation(BatchObject, CreateBatch, errors=(*BODY, 404, 429, 503), listing=BatchList),
    "/v1/batches/{batch_id}": Operation(BatchObject, errors=(404,)),
    "/v1/batches/{batch_id}/cancel": Operation(BatchObject, errors=(404,)),
    "/v1/sessions": Operation(SessionList),
    "/v1/sessions/{name}": Operation(SessionAnswer, errors=(404,), deletion=DeletedSession),
    "/v1/sessions/{name}/fork": Operation(SessionAnswer, ForkRequest, errors=(*BODY, 404, 409)),
    "/v1/sessions/{name}/rewind": Operation(SessionAnswer, RewindRequest, errors=(*BODY, 404)),
    "/v1/sessions/{name}/pin": Operation(SessionAnswer, errors=(404, 409), deletion=SessionAnswer),
    **{path.path: Operation(path.kind.gives, path.kind.takes, errors=(*BODY, 404, 429)) for path in PATHS},
    "/v1/audio/transcriptions": Operation(
        TranscriptAnswer, chunk=SOUND_EVENTS, errors=(*BODY, 404, 429), form=TranscriptForm
    ),
    "/v1/audio/translations": Operation(
        TranscriptAnswer, chunk=SOUND_EVENTS, errors=(*BODY, 404, 429), form=TranscriptForm
    ),
    "/tokenize": Operation(TokenizeResponse, TokenizeRequest, errors=(*BODY, 404)),
    "/detokenize": Operation(DetokenizeResponse, DetokenizeRequest, errors=(*BODY, 404)),
    "/tokenizer_info": Operation(TokenizerInfo),
    "/invocations": Operation(AnyAnswer, AnyBody, errors=(*BODY, 404, 429)),
    "/inference/v1/generate": Operation(GenerateResponse, GenerateRequest, GenerateResponse, errors=(*BODY, 404, 429)),
    "/v1/chat/completions/render": Operation(GenerateRequest, ChatRequest, errors=(*BODY, 404, 429)),
    "/v1/chat/completions/derender": Operation(ChatResponse, DerenderChat, errors=(*BODY, 404, 429)),
    "/v1/completions/render": Operation(AnyAnswer, CompletionRequest, errors=(*BODY, 404, 429)),
    "/v1/completions/derender": Operation(CompletionResponse, DerenderCompletion, errors=(*BODY, 404, 429)),
    "/reset_prefix_cache": Operation(ResetAnswer, errors=(409,)),
    "/reset_mm_cache": Operation(ResetAnswer),
    "/reset_encoder_cache": Operation(ResetAnswer),
    "/abort_requests": Operation(AbortAnswer, AbortRequest, errors=BODY),
    "/inference/v1/abort_requests": Operation(AbortAnswer, AbortRequest, errors=BODY),
    "/load": Operation(LoadAnswer),
    "/start_profile": Operation(ProfileAnswer, errors=(409,)),
    "/stop_profile": Operation(ProfileAnswer, errors=(409,)),
    "/sleep": Operation(StatusAnswer),
    "/wake_up": Operation(StatusAnswer),
    "/is_sleeping": Operation(SleepingAnswer),
    "/pause": Operation(StatusAnswer),
    "/resume": Operation(StatusAnswer),
    "/is_paused": Operation(PausedAnswer),
    "/drain_engine": Operation(Drained, errors=(404, 409)),
    "/undrain_engine": Operation(StatusAnswer, errors=(404, 409)),
    "/rebalance_engines": Operation(Moved, errors=(409,)),
    "/scale_elastic_ep": Operation(Scaled, ScaleRequest, errors=(*BODY, 409, 503)),
    "/is_scaling_elastic_ep": Operation(ScalingAnswer),
    "/init_weight_transfer_engine": Operation(WeightsAnswer, InitRequest, errors=BODY),
    "/update_weights": Operation(WeightsAnswer, UpdateRequest, errors=(*BODY, 403)),
    "/start_weight_update": Operation(WeightsAnswer, BeginRequest, errors=BODY),
    "/finish_weight_update": Operation(WeightsAnswer, FinishRequest, errors=BODY),
    "/collective_rpc": Operation(RpcAnswer, RpcRequest, errors=BODY),
    "/get_world_size": Operation(WorldSize),
    "/weight_info": Operation(WeightInfo),
    "/v1/load_lora_adapter": Operation(AdapterAnswer, LoadAdapterRequest, errors=(*BODY, 403, 404)),
    "/v1/unload_lora_adapter": Operation(AdapterAnswer, UnloadAdapterRequest, errors=(*BODY, 404)),
    "/health": Operation(HealthAnswer),
    "/ping": Operation(HealthAnswer),
    "/ready": Operation(HealthAnswer),
    "/readyz": Operation(HealthAnswer),
    "/live": Operation(HealthAnswer),
    "/version": Operation(VersionAnswer),
    "/server_info": Operation(ServerInfo),
    "/metrics": Operation(TEXT),
}


def document(
    app: FastAPI, operations: Mapping[str, Operation], access: Mapping[str, Access], *, keys: bool, guards: bool
) -> dict[str, Any]:
    """Return the document of `app`.

    operations, access: by path. keys: whether requests need one. guards: whether some callers are not the operator.
    """
    made = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for path, methods in made["paths"].items():
        known = operations[path]
        guarded = keys and access[path] != "public"
        responses = _responses(known, guarded=guarded, for_operator=guards and access[path] == "operator")
        for method, operation in methods.items():
            operation["responses"] = responses | _other_success(known, method)
            body = _body(known, method)
            if body is not None:
                operation["requestBody"] = {"required": True, "content": body}
            if guarded:
                operation["security"] = [{name: []} for name in KEY_SCHEMES]
    made["components"] = _components(operations, keys)
    return made


def _responses(known: Operation, *, guarded: bool, for_operator: bool) -> dict[str, Any]:
    """Return the answers of a path by status. guarded: whether it needs a key. for_operator: whether others are refused."""
    errors = {*ALWAYS, *known.errors}
    if for_operator:
        errors.add(403)
    if guarded:
        errors.add(401)
    responses = {"200": _success(known)}
    for status in sorted(errors):
        responses[str(status)] = _error(status, anthropic=known.anthropic)
    return responses


def _other_success(known: Operation, method: str) -> dict[str, Any]:
    """Return the answer of a method that has one of its own, by status; empty for all others."""
    struct = {"delete": known.deletion, "get": known.listing}.get(method)
    return {} if struct is None else {"200": {"description": "The answer.", "content": _json(struct)}}


def _body(known: Operation, method: str) -> dict[str, Any] | None:
    """Return the content of a method's request body; None: it takes none."""
    if method == "get" and known.listing is not None:
        return None
    if known.body is not None:
        return _json(known.body)
    return None if known.form is None else {FORM: {"schema": {"$ref": SCHEMAS + known.form.__name__}}}


def _success(known: Operation) -> dict[str, Any]:
    if known.answer is None:
        return {"description": "Yes; the body is empty."}
    content: dict[str, Any] = {}
    if isinstance(known.answer, str):
        content[known.answer] = {"schema": {"type": "string"}}
    else:
        content |= _json(known.answer)
    if known.chunk is not None:
        content[EVENTS] = {"schema": {"type": "string", "description": _streamed(known.chunk)}}
    return {"description": "The answer.", "content": content}


def _streamed(chunk: type[msgspec.Struct] | tuple[type[msgspec.Struct], ...]) -> str:
    if isinstance(chunk, tuple):
        names = ", ".join(event.__name__ for event in chunk)
        return f"With `stream`: lines `event: TYPE` and `data: EVENT`, each event one of {names}."
    return f"With `stream`: lines `data: {chunk.__name__}`, then `data: [DONE]`."


def _error(status: int, *, anthropic: bool) -> dict[str, Any]:
    shape = "AnthropicError" if anthropic else "Error"
    return {"$ref": f"#/components/responses/{shape}{status}"}


def _json(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the content of a JSON body."""
    schema = {"$ref": SCHEMAS + struct.__name__}
    return {JSON: {"schema": schema}}


def _components(operations: Mapping[str, Operation], keys: bool) -> dict[str, Any]:
    structs: list[type[msgspec.Struct]] = [ErrorBody, MessagesError]
    for known in operations.values():
        chunks = known.chunk if isinstance(known.chunk, tuple) else (known.chunk,)
        for struct in (known.answer, known.body, known.form, known.deletion, known.listing, *chunks):
            if isinstance(struct, type):
                structs.append(struct)
    distinct = dict.fromkeys(structs)
    _, schemas = msgspec.json.schema_components(distinct, ref_template=SCHEMAS + "{name}")
    responses = {}
    for shape, body in (("Error", ErrorBody), ("AnthropicError", MessagesError)):
        content = _json(body)
        for status, meaning in STATUSES.items():
            responses[f"{shape}{status}"] = {"description": meaning, "content": content}
    components: dict[str, Any] = {"schemas": schemas, "responses": responses}
    if keys:
        components["securitySchemes"] = KEY_SCHEMES
    return components
