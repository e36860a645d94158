"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, if that is allowed. Owns: their checks and answers."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from core.api.config import WeightTransferConfig
from core.api.errors import UNREADABLE, RequestError, nearest
from core_apis.body import SHORT_BODY, json_response, read_body
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
    allowed = context_of(request).engine.config.weight_transfer
    loaded = await adapters.engine.load(name, replaces=body.load_inplace, **_source(body, adapters, allowed))
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


def _source(body: LoadAdapterRequest, adapters: ServedAdapters, allowed: WeightTransferConfig | None) -> dict[str, Any]:
    """Return where an adapter lies, as arguments of `Adapters.load`. Raises RequestError.

    allowed: transports that the operator allows; None: there are none.
    """
    if (body.lora_path is None) == (body.shared_memory is None):
        raise RequestError("Expected either lora_path or shared_memory.", param="lora_path")
    if body.lora_path is not None:
        for name, given in (("tensors", body.tensors), ("adapter_config", _given(body.adapter_config))):
            if given:
                raise RequestError(
                    f"{name} describes shared memory, but lora_path is given; leave one out.", param=name
                )
        return {"path": adapters.path(body.lora_path)}
    if allowed is None or allowed.backend not in ("any", "shared_memory"):
        said = "has no --weight-transfer-config" if allowed is None else f"takes weights from {allowed.backend} only"
        raise RequestError(
            f"shared_memory is given, but this server {said} (--weight-transfer-config.backend).",
            param="shared_memory",
            status=403,
        )
    described = {"shared_memory": body.shared_memory, "tensors": msgspec.to_builtins(body.tensors)}
    return {"sent": described | {"configuration": _configuration(_given(body.adapter_config))}}


def _given(raw: msgspec.Raw) -> bytes:
    """Return undecoded JSON; nothing for null."""
    found = bytes(raw)
    return b"" if found == b"null" else found


def _configuration(given: bytes) -> str:
    """Return the text of an adapter's configuration, which the engine decodes. Raises RequestError."""
    if not given:
        said = "is missing"
    elif not given.startswith(b"{"):
        said = "is no object"
    else:
        try:
            return given.decode()
        except UnicodeDecodeError:
            said = "is no UTF-8"
    raise RequestError(f"adapter_config {said}; expected what adapter_config.json holds.", param="adapter_config")


def _adapters(request: Request) -> ServedAdapters:
    adapters = context_of(request).adapters
    assert adapters is not None, "the routes exist with adapters only"
    return adapters


async def _body(request: Request, kind: type[T]) -> T:
    """Decode the body: 1 MiB describes some 6,000 tensors in shared memory, 40,000 took 110 ms of the event loop.

    Raises RequestError.
    """
    with context_of(request).bodies.body(SHORT_BODY) as body:
        data = b"".join(await read_body(request, body))
        try:
            return msgspec.json.decode(data, type=kind)
        except UNREADABLE as error:
            raise RequestError(f"The body is not understood: {error}.", param="body") from None
