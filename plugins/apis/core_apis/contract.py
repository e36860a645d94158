"""The contract of HTTP APIs: routes, and the kinds of request bodies that they take.

Owns: the Protocol. Never does: import what serves HTTP, whose types a plugin imports from `core_apis`.
Called by: plugins (they implement it), the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from core.api.config import EngineConfig
from core_config.server_config import ServerConfig


class Api(Protocol):
    """Kind `api`. Both methods are called when the server starts, `bodies` in its helper processes, too."""

    def bodies(self) -> Sequence[Any]:
        """The kinds of bodies, each a `core_apis.body_kinds.BodyKind`. Imports nothing that serves HTTP."""
        ...

    def routes(self, server: ServerConfig, engine: EngineConfig) -> Sequence[Any]:
        """The routes, as `core_apis.api_routes.ApiRoutes`. server, engine: the resolved settings; some routes need some."""
        ...
