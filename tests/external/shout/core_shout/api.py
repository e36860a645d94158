"""The API: its body, the steps that prepare it, and its routes. Read in a helper process too, so it imports no FastAPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from core.api.config import EngineConfig
from core_apis.body_kinds import BodyKind, json_of
from core_apis.field_names import own_names
from core_apis.openai_bodies import prepare_completion
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import PreparedCompletion
from core_apis.protocol.completions import CompletionRequest
from core_config.served.server_config import ServerConfig


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
    """Implements `core_apis.contract.Api`."""

    def bodies(self) -> Sequence[BodyKind]:
        """One kind of body."""
        return [BodyKind(name="shout", decode=json_of(Body), prepare=prepare, result=PreparedCompletion)]

    def routes(self, server: ServerConfig, engine: EngineConfig) -> Sequence[Any]:
        """One route, for every caller with a key."""
        from core_apis.api_routes import exchange_routes
        from core_shout.answer import ROW, Answer

        return [exchange_routes("/v1/shout", ROW, access="tenant", body=Body, answer=Answer)]
