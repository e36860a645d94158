"""The maker of the executor `ray`: that of `mp`, with hosts that are actors.

Owns: `RayMaker`. Never does: place or start an actor (`RayHosts` does). Called by: the manifest.
"""

from __future__ import annotations

from core.api.config import EngineConfig
from core_distributed.arguments import RayArguments
from core_distributed.executor import RanksExecutor
from core_distributed.maker import RanksMaker
from core_distributed.on_ray.hosts import RayHosts


class RayMaker:
    """Builds the executor; implements `core.engine.executor.ExecutorMaker`. arguments: the executor's own."""

    def __init__(self, arguments: RayArguments) -> None:
        self._arguments = arguments

    def build(self, config: EngineConfig) -> RanksExecutor:
        """Join the cluster, start all ranks and read the weights. Raises UserError where there is no Ray, or no cluster."""
        hosts = RayHosts(config, self._arguments)
        try:
            hosts.place()
            return RanksMaker(hosts.arguments, hosts).build(hosts.config)
        except BaseException:
            hosts.close()
            raise
