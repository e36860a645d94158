"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, if that is allowed. Owns: their checks and answers."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from core.api.errors import UNREADABLE, RequestError, nearest
from core_apis.body import json_response, read_body
from core_apis.context import context_of
from core_apis.protocol.adapters import AdapterAnswer, LoadAdapterRequest, UnloadAdapterRequest
from core_apis.served_adapters import LONGEST_NAME, ServedAdapters

router = APIRouter(tags=["operation"])

T = TypeVar("T")


@router.post("/v1/load_lora_adapter")
async def load_lora_adapter(request: Request) -> Response:
    """Load an adapter under a name, which requests use as their model from then on."""
    body = await _body(request, LoadAdapterRequest)
    adapters = _adapters(request)
    name = body.lora_name
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise RequestError("lora_name is empty, too long or not printable.", param="lora_name")
    if name in context_of(request).names.now():
        raise RequestError(f"lora_name is {name!r}, a name of the base model; choose another one.", param="lora_name")
    path = adapters.path(body.lora_path)
    loaded = await adapters.engine.load(name, path, replaces=body.load_inplace)
    return json_response(AdapterAnswer(f"The adapter '{name}' is loaded.", loaded.digest))


@router.post("/v1/unload_lora_adapter")
async def unload_lora_adapter(request: Request) -> Response:
    """Take an adapter's name away: it takes no new requests, and leaves memory when its last one has ended."""
    body = await _body(request, UnloadAdapterRequest)
    adapters = _adapters(request).engine
    name = body.lora_name
    if await adapters.find(name) is None:
        hint = nearest(name, adapters.names)
        raise RequestError(
            f"lora_name is {name[:LONGEST_NAME]!r}; no such adapter is loaded.{hint}", param="lora_name", status=404
        )
    await adapters.unload(name)
    return json_response(AdapterAnswer(f"The adapter '{name}' is unloaded."))


def _adapters(request: Request) -> ServedAdapters:
    adapters = context_of(request).adapters
    assert adapters is not None, "the routes exist with adapters only"
    return adapters


async def _body(request: Request, kind: type[T]) -> T:
    """Decode the body. Raises RequestError."""
    with context_of(request).bodies.body() as body:
        data = b"".join(await read_body(request, body))
        try:
            return msgspec.json.decode(data, type=kind)
        except UNREADABLE as error:
            raise RequestError(f"The body is not understood: {error}.", param="body") from None
