"""The contract of HTTP APIs: routes, and the kinds of request bodies that they accept.

Owns: the Protocol. Never does: import HTTP modules, whose types a plugin imports from `core_apis`. Called by: plugins
(they implement it), the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from core.api.config import EngineConfig
from core_config.served.server_config import ServerConfig


class Api(Protocol):
    """An HTTP API, a plugin of kind `api`.

    Both methods are called when the server starts, `bodies` in its helper processes, too.
    """

    def bodies(self) -> Sequence[Any]:
        """Return the kinds of bodies, each a `core_apis.body_kinds.BodyKind`. Must not import HTTP modules."""
        ...

    def routes(self, server: ServerConfig, engine: EngineConfig) -> Sequence[Any]:
        """Return the routes, as `core_apis.api_routes.ApiRoutes`.

        server, engine: the resolved settings; some routes depend on them.
        """
        ...
