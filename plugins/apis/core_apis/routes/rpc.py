"""POST /collective_rpc: methods of the engine, and the user's own on the worker, called by name.

Owns: which methods a server has. Never does: run one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from fastapi import APIRouter, Request, Response

from core.api.errors import RequestError
from core_apis.body import json_response
from core_apis.context import context_of
from core_apis.engine_protocol import ServingEngine
from core_apis.protocol.weights import RpcAnswer, RpcRequest
from core_apis.routes.weights import checked_update, decoded_body
from core_apis.server.disconnect import waited_for
from core_frontend.library.named_calls import CALLS, Update, named_call
from core_observers.observer_settings import WORKER_EXTENSION

router = APIRouter(tags=["operation"])


@router.post("/collective_rpc")
async def collective_rpc(request: Request) -> Response:
    """Call a method by name: `reload_weights`, `sleep`, `wake_up`, `update_weights` and related ones, where the server has
    --weight-transfer-config, and the public methods of --worker-extension-cls.
    """
    body = await decoded_body(request, RpcRequest)
    engine = context_of(request).engine
    called, mode = _called(engine, body)
    calling = asyncio.wait_for(called, body.timeout)
    try:
        answer = await waited_for(mode, request.receive, calling)
    except TimeoutError:
        raise RequestError(
            f"{body.method} was not done within {body.timeout:g} s (timeout); the engine may still be doing it.",
            param="timeout",
            status=504,
            code="timeout",
        ) from None
    return json_response(RpcAnswer([answer]))


def _called(engine: ServingEngine, body: RpcRequest) -> tuple[Awaitable[Any], str]:
    """Return the call, not yet awaited, and what it does with current requests. Raises RequestError."""
    transfer = engine.config.weight_transfer
    extends = WORKER_EXTENSION in engine.config.plugins.arguments
    if extends and (body.method not in CALLS or transfer is None):
        call = engine.control.call("call_worker_extension", method=body.method, args=body.args, kwargs=body.kwargs)
        return call, ""
    named = named_call(body.method, body.args, body.kwargs)
    if isinstance(named, Update):
        assert transfer is not None  # a server without it has an extension, or no such path
        named.update_info = checked_update(named.update_info, transfer)
    return named.on(engine.control), getattr(named, "mode", "")
