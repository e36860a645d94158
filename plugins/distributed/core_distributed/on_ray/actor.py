"""The actor of Ray that runs one host's ranks.

Owns: `HostActor`, a node as `core serve --node-rank N` is one. Never does: compute (its child does), or import Ray.
Called by: `RayHosts`, which makes an actor of the class.
"""

from __future__ import annotations

import msgspec

from core.api.config import EngineConfig
from core.api.errors import CoreError
from core.logging_setup import setup_logging
from core_distributed.arguments import RanksArguments
from core_distributed.hosts.made_key import MadeKey
from core_distributed.hosts.node import NodeServer


class HostActor:
    """The ranks of one bundle, for one engine.

    config, arguments: of the engine, as msgpack. number: of the node, from 1 on. secret: see `MadeKey`.
    """

    def __init__(self, config: bytes, arguments: bytes, number: int, secret: bytes) -> None:
        self._config = msgspec.msgpack.decode(config, type=EngineConfig)
        self._key = MadeKey(secret)
        given = msgspec.msgpack.decode(arguments, type=RanksArguments)
        self._server = NodeServer(self._config, msgspec.structs.replace(given, key_file=self._key.path), number)
        self._number = number

    def run(self) -> None:
        """Serve the engine until it or a rank ends. Raises CoreError when this node is turned away."""
        setup_logging("INFO", f"node {self._number}", config=self._config.log_config)
        try:
            self._server.serve_one()
        except CoreError as error:  # as an error that Ray can carry, whatever its subclass is made of
            raise CoreError(str(error)) from None
