"""The API: its body, the steps that prepare it, and its routes. Read in a helper process too, so it imports no FastAPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from core.api.config import EngineConfig
from core.api.server_config import ServerConfig
from core.serving.body_kinds import BodyKind, json_of
from core.serving.field_names import own_names
from core.serving.openai_bodies import prepare_completion
from core.serving.preparation import Preparation
from core.serving.prepared import PreparedCompletion
from core.serving.protocol.completions import CompletionRequest


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a client sends. A field that is not here is refused by name."""

    text: str
    max_tokens: int = 16
    stream: bool = False


def prepare(preparation: Preparation, body: Body) -> PreparedCompletion:
    """The completion that the engine runs, within the server's limits. Errors name the fields of `Body`."""
    with own_names({"prompt": "text"}):
        asked = CompletionRequest(prompt=body.text, max_tokens=body.max_tokens, stream=body.stream)
        return prepare_completion(preparation, asked)


class ShoutApi:
    """Implements `core.plugin.contracts.api.Api`."""

    def bodies(self) -> Sequence[BodyKind]:
        """One kind of body."""
        return [BodyKind(name="shout", decode=json_of(Body), prepare=prepare, result=PreparedCompletion)]

    def routes(self, server: ServerConfig, engine: EngineConfig) -> Sequence[Any]:
        """One route, for every caller with a key."""
        from core.serving.api_routes import exchange_routes
        from core_shout.answer import ROW, Answer

        return [exchange_routes("/v1/shout", ROW, access="tenant", body=Body, answer=Answer)]
