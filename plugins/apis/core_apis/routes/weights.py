"""Replacement of weights while the server runs, if that is allowed: POST /update_weights and related paths.

Owns: which sources are allowed, and the answers. Never does: read a weight.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from core.api.config import WeightTransferConfig
from core.api.errors import UNREADABLE, RequestError
from core.api.weights import WeightUpdate
from core_apis.body import json_response, read_body
from core_apis.context import context_of
from core_apis.protocol.weights import (
    BeginRequest,
    FinishRequest,
    InitRequest,
    UpdateRequest,
    WeightInfo,
    WeightsAnswer,
    WorldSize,
)
from core_apis.query import check_names, flag_of, mode_of
from core_apis.server.disconnect import waited_for

router = APIRouter(tags=["operation"])

T = TypeVar("T")


@router.post("/init_weight_transfer_engine")
async def init_weight_transfer_engine(request: Request) -> Response:
    """Do nothing: checkpoints and shared memory need no preparation."""
    body = await decoded_body(request, InitRequest)
    if body.init_info:
        raise RequestError(
            "init_info is not empty; weights come from checkpoints and shared memory, which need no preparation.",
            param="init_info",
        )
    return _answer(request, "Weight transfer initialized")


@router.post("/update_weights")
async def update_weights(request: Request) -> Response:
    """Replace some or all weights, at once, or with others after /start_weight_update."""
    body = await decoded_body(request, UpdateRequest)
    context = context_of(request)
    allowed = context.engine.config.weight_transfer or WeightTransferConfig()
    update = checked_update(body.update_info, allowed)
    mode = mode_of(body.mode)
    await waited_for(mode, request.receive, context.engine.control.update_weights(update, mode))
    return _answer(request, "Weights updated")


@router.post("/start_weight_update")
async def start_weight_update(request: Request) -> Response:
    """Collect updates until /finish_weight_update."""
    body = await decoded_body(request, BeginRequest)
    if not body.is_checkpoint_format:
        raise RequestError(
            "is_checkpoint_format is false; expected true: tensors are taken as a checkpoint has them.",
            param="is_checkpoint_format",
        )
    await context_of(request).engine.control.start_weight_update()
    return _answer(request, "Weight update started")


@router.post("/finish_weight_update")
async def finish_weight_update(request: Request) -> Response:
    """Apply the collected updates, all or none."""
    body = await decoded_body(request, FinishRequest)
    control = context_of(request).engine.control
    mode = mode_of(body.mode)
    await waited_for(mode, request.receive, control.finish_weight_update(body.weight_version, mode))
    return _answer(request, "Weight update finished")


@router.get("/get_world_size")
async def get_world_size(request: Request) -> Response:
    """Return how many processes hold a part of the weights. Query: include_dp=false leaves out all engines but one."""
    check_names(request, "include_dp")
    context = context_of(request)
    server = context.server
    every = flag_of("include_dp", request.query_params.get("include_dp", "true"))
    places, num_engines = context.engine.engines, server.num_engines
    if len(places) >= num_engines:  # those of this server are all there are, and they come and go
        num_engines = sum(place.state not in ("ended", "starting") for place in places) or num_engines
    return json_response(WorldSize(server.num_ranks * (num_engines if every else 1)))


@router.get("/weight_info")
async def weight_info(request: Request) -> Response:
    """Return the version of the weights that answers come from."""
    return json_response(WeightInfo(context_of(request).engine.stats.weight_version))


def _answer(request: Request, message: str) -> Response:
    return json_response(WeightsAnswer(message, context_of(request).engine.stats.weight_version))


async def decoded_body(request: Request, kind: type[T]) -> T:
    """Decode the body, which may be empty. Raises RequestError."""
    with context_of(request).bodies.body() as body:
        data = b"".join(await read_body(request, body))
        try:
            return msgspec.json.decode(data or b"{}", type=kind)
        except UNREADABLE as error:
            raise RequestError(f"The body is not understood: {error}.", param="body") from None


def checked_update(update: WeightUpdate, allowed: WeightTransferConfig) -> WeightUpdate:
    """Check that an update comes from a source that the operator allows. Raises RequestError (403)."""
    source = "file" if update.path is not None else "shared_memory"
    if allowed.backend not in ("any", source):
        raise RequestError(
            f"This server takes weights from {allowed.backend} only (--weight-transfer-config.backend).",
            param="update_info",
            status=403,
        )
    if update.path is None or allowed.directory is None:
        return update
    real = Path(allowed.directory, update.path).resolve()
    if not real.is_relative_to(allowed.directory):
        raise RequestError(
            f"path is {update.path!r}; expected one below --weight-transfer-config.directory.", param="path", status=403
        )
    return msgspec.structs.replace(update, path=str(real))
