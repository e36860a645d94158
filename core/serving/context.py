"""What every route needs: the engine, the settings, the chat template, the metrics.

Owns: `ServingContext` and the look-up of the model's name. Never does: handle a request.
Called by: `core.serving.app` (builds it), routes (through `context_of`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from fastapi import Request

from core.api.config import ModelConfig, ServerConfig
from core.api.errors import RequestError, nearest
from core.observe.metrics import ServerMetrics
from core.serving.engine_protocol import ServingEngine
from core.serving.middleware import client_request_id
from core.tokens.chat_template import ChatTemplate


@dataclass(slots=True)
class ServingContext:
    """One for each app. defaults: the checkpoint's sampling parameters. created: seconds since the epoch."""

    engine: ServingEngine
    server: ServerConfig
    model: ModelConfig
    template: ChatTemplate
    metrics: ServerMetrics
    defaults: dict[str, Any]
    created: int = field(default_factory=lambda: int(time.time()))

    def check_model(self, name: str | None) -> str:
        """The name to report for a request that asks for `name`; RequestError 404 when it is not served."""
        if name is None or name in self.model.served_names:
            return name or self.model.served_names[0]
        served = ", ".join(f"'{served}'" for served in self.model.served_names)
        raise RequestError(
            f"The model '{name}' does not exist; this server serves {served}.{nearest(name, self.model.served_names)}",
            param="model",
            status=404,
            code="model_not_found",
        )


def context_of(request: Request) -> ServingContext:
    """The context of the app that serves `request`."""
    context = request.app.state.context
    assert isinstance(context, ServingContext)
    return context


def user_of(request: Request, named: object) -> str:
    """Whose request it is: that of an API key where there are several, else of the body's `user` field."""
    if len(context_of(request).server.api_keys) > 1:
        return f"API key {request.state.api_key}"
    return named if isinstance(named, str) else ""


def response_id(request: Request, prefix: str, own: str | None) -> str:
    """`prefix` and the request's id: from the body, else from `X-Request-Id`, else new."""
    return f"{prefix}-{own or client_request_id(request.headers) or uuid4().hex}"
