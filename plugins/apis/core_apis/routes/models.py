"""GET /v1/models and /v1/models/NAME. Owns: the model cards."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core_apis.body import json_response
from core_apis.context import ServingContext, context_of
from core_apis.protocol.operation import ModelCard, ModelList
from core_frontend.adapters import LoadedAdapter
from core_media.config import AUDIO, MediaConfig

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """List all model names that this server answers to."""
    context = context_of(request)
    cards = [_card(context, name) for name in context.names.now()]
    if context.adapters is not None:
        cards += [_adapter_card(context, adapter) for adapter in await context.adapters.engine.refresh()]
    return json_response(ModelList(cards))


@router.get("/v1/models/{name:path}")
async def retrieve_model(request: Request, name: str) -> Response:
    """Return one model by its name."""
    context = context_of(request)
    if context.adapters is not None and name not in context.names.now():
        await context.adapters.check(name)
        adapter = context.adapters.engine.known(name)
        if adapter is not None:
            return json_response(_adapter_card(context, adapter))
    return json_response(_card(context, context.preparer.here.check_model(name)))


def _adapter_card(context: ServingContext, adapter: LoadedAdapter) -> ModelCard:
    card = _card(context, adapter.name)
    card.parent = context.names.now()[0]
    card.adapter_digest = adapter.digest
    return card


def _card(context: ServingContext, name: str) -> ModelCard:
    # The model's path is private to the host.
    card = ModelCard(name, context.created, name, context.model.max_model_len)
    card.input_modalities = _modalities(context.preparer.here.settings.media)
    served = context.preparer.here.settings.format
    if served is not None:
        card.response_format = f"{served.row.name} ({served.reason})"
    card.weight_version = context.weight_version
    return card


def _modalities(media: MediaConfig | None) -> tuple[str, ...]:
    """Return what prompts may hold; a model that transcribes takes sounds alone."""
    if media is None:
        return ("text",)
    return (AUDIO,) if media.sound is not None else ("text", *media.places)
