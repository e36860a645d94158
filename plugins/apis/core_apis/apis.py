"""The HTTP APIs that come with the engine, as rows; each is a plugin of kind `api` like any other.

Owns: `OwnApi` (manifest and API in one), the rows, and loading the chosen APIs. Never does: import HTTP modules before
routes are requested: the helper process reads the rows for their bodies alone. Called by: discovery, through entry
points; `core_apis.app` (routes), `core_apis.prepare.preparation` (bodies).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from core.api.config import EngineConfig, ResolvedPlugin
from core.api.errors import PluginError
from core.plugin.distributions import is_own
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_config.served.server_config import ServerConfig
from core_observers.observer_settings import WORKER_EXTENSION

if TYPE_CHECKING:
    from core_apis.body_kinds import BodyKind
    from core_apis.contract import Api

KIND = "api"

Wanted = Callable[[ServerConfig, EngineConfig], bool]

WANTED: Mapping[str, Wanted] = MappingProxyType(
    {
        "docs": lambda server, engine: not server.disable_fastapi_docs,
        "page": lambda server, engine: not server.disable_ui,
        "load": lambda server, engine: server.enable_server_load_tracking,
        "tokenizer_info": lambda server, engine: server.enable_tokenizer_info_endpoint,
        "quote": lambda server, engine: server.quotes,
        "profile": lambda server, engine: engine.profiler is not None,
        "sleep": lambda server, engine: engine.sleeps,
        "weights": lambda server, engine: engine.weight_transfer is not None,
        "rpc": lambda server, engine: (
            engine.weight_transfer is not None or WORKER_EXTENSION in engine.plugins.arguments
        ),
        "files": lambda server, engine: server.batches is not None,
        "batches": lambda server, engine: server.batches is not None,
        "adapters": lambda server, engine: (
            engine.adapters is not None and server.adapters is not None and server.adapters.is_updated
        ),
        "engines": lambda server, engine: engine.data_parallel_size > 1,
        "pause": lambda server, engine: engine.sleeps or engine.weight_transfer is not None,
    }
)
"""Modules of routes that a server has only on request; all others are always there."""


class OwnApi:
    """One row of the table: an API of the engine.

    routes:   modules of `core_apis.routes`.
    bodies:   the module with its kinds of bodies; empty: it has none.
    priority: where paths are matched, routes of a higher priority come first.
    """

    CONTRACT = 1
    KIND = KIND

    def __init__(self, name: str, summary: str, routes: Sequence[str], bodies: str, priority: int) -> None:
        self.name = name
        self._summary = summary
        self._routes = routes
        self._bodies = bodies
        self._priority = priority

    @hookimpl
    def core_spec(self) -> PluginSpec:
        """Return the plugin's manifest."""
        return PluginSpec(name=self.name, summary=self._summary, priority=self._priority)

    @hookimpl
    def core_load(self, context: LoadContext) -> Any:
        """Return the API, which is its own row."""
        return self

    def bodies(self) -> Sequence[BodyKind]:
        """Return the kinds of bodies, as in `Api`."""
        if not self._bodies:
            return ()
        found: Sequence[BodyKind] = importlib.import_module(self._bodies).BODIES
        return found

    def routes(self, server: ServerConfig, engine: EngineConfig) -> Sequence[Any]:
        """Return the routes, as in `Api`."""
        wanted = [name for name in self._routes if name not in WANTED or WANTED[name](server, engine)]
        own_routes = importlib.import_module("core_apis.api_routes").own_routes
        return [own_routes(importlib.import_module(f"core_apis.routes.{name}")) for name in wanted]


OPENAI: Final = OwnApi(
    "openai",
    "OpenAI: /v1/models, /v1/completions, /v1/chat/completions, several chats at once; /v1/sessions, /v1/quote",
    ("models", "completions", "chat", "sessions", "quote"),
    "core_apis.openai_bodies",
    80,
)
RESPONSES: Final = OwnApi(
    "responses",
    "OpenAI's /v1/responses, kept and in the background",
    ("responses",),
    "core_apis.responses.bodies",
    70,
)
BATCHES: Final = OwnApi("batches", "OpenAI's /v1/files and /v1/batches", ("files", "batches"), "", 65)
GENERATIVE_SCORING: Final = OwnApi(
    "generative_scoring",
    "vLLM's /generative_scoring: items scored by the probability of a label",
    ("generative_scoring",),
    "core_apis.scoring.bodies",
    62,
)
MESSAGES: Final = OwnApi("messages", "Anthropic's /v1/messages", ("messages",), "core_apis.anthropic.bodies", 60)
POOLING: Final = OwnApi(
    "pooling",
    "embeddings, scores, classes and reranking, as OpenAI, Cohere and Jina have them",
    ("pooling",),
    "core_apis.pooling.bodies",
    50,
)
AUDIO: Final = OwnApi("audio", "OpenAI's /v1/audio/transcriptions and /v1/audio/translations", ("audio",), "", 45)
TOKENS: Final = OwnApi(
    "tokens", "/tokenize, /detokenize, /tokenizer_info", ("tokenize", "tokenizer_info"), "core_apis.text_bodies", 40
)
TOKEN_IO: Final = OwnApi(
    "token_io",
    "/invocations; /inference/v1/generate with token ids in and out, and the paths that render and read them",
    ("invocations", "token_io"),
    "core_apis.token_io.bodies",
    35,
)
OPERATION: Final = OwnApi(
    "operation",
    "health, metrics, and the operator's routes",
    (
        "cache",
        "health",
        "metrics",
        "server_info",
        "abort",
        "load",
        "profile",
        "sleep",
        "weights",
        "rpc",
        "adapters",
        "pause",
        "engines",
    ),
    "",
    30,
)
DOCS: Final = OwnApi("docs", "/docs, from the OpenAPI document", ("docs",), "", 20)
PAGE: Final = OwnApi("page", "the page at /", ("page",), "", 10)

OWN: Final = (
    OPENAI,
    RESPONSES,
    BATCHES,
    GENERATIVE_SCORING,
    MESSAGES,
    POOLING,
    AUDIO,
    TOKENS,
    TOKEN_IO,
    OPERATION,
    DOCS,
    PAGE,
)


def load_apis(chosen: Sequence[ResolvedPlugin] | None) -> list[tuple[str, Api]]:
    """Return the chosen APIs by plugin name. chosen: None: all of the engine's own. Raises PluginError."""
    own = {api.name: api for api in OWN}
    if chosen is None:
        return list(own.items())
    found: list[tuple[str, Api]] = []
    for row in chosen:
        is_ours = is_own(row.distribution) and row.name in own
        found.append((row.name, own[row.name] if is_ours else _loaded(row)))
    return found


def _loaded(row: ResolvedPlugin) -> Api:
    """Load an API of another package. Raises PluginError."""
    # Most servers load no third-party API; their helper processes start sooner without this import.
    from core.plugin.table import PluginTable

    loaded: Api = PluginTable([row]).load(KIND, row.name, LoadContext())
    return loaded


def body_kinds(chosen: Sequence[ResolvedPlugin] | None) -> dict[str, BodyKind]:
    """Return the kinds of bodies of the chosen APIs by name. Raises PluginError if two have the same name."""
    from core_apis.body_kinds import MODEL_NAME  # not above: it imports the readers of bodies

    found = {MODEL_NAME.name: MODEL_NAME}
    for name, api in load_apis(chosen):
        for kind in api.bodies():
            if kind.name in found:
                raise PluginError(
                    f"api plugin '{name}': has a kind of body '{kind.name}', as another API has; expected a name of its own. "
                    f"Leave it out with --plugins no:{name}."
                )
            found[kind.name] = kind
    return found
