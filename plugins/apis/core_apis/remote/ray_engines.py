"""The engines of a group that Ray starts: `core serve --data-parallel-backend ray`.

Owns: the placement group, an actor for each engine that is not this command's own, and their end. Never does: send an engine
a request; the engines join the API server as those of other commands do. Called by: `core serve`.

Ray starts an actor that dies again, on another node if need be, and its engine joins once more.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from core.args.schema import schema
from core_config.arguments.reach import is_for_api_servers
from core_distributed.hosts.free_ports import free_ports
from core_distributed.hosts.made_key import MadeKey
from core_distributed.on_ray.cluster import Cluster
from core_distributed.on_ray.engine_actor import EngineActor
from core_observers.logging import SERVER_LIBRARIES, setup_logging

if TYPE_CHECKING:
    from core_config.resolve import Resolution

logger = logging.getLogger(__name__)

FLAG: Final = "--data-parallel-backend ray"
LOOK_S: Final = 0.5
END_S: Final = 15.0
"""Limit of seconds in which engines end by themselves."""
OF_THE_API_SERVER: Final = frozenset(
    {"config", "data_parallel_size_local", "data_parallel_address", "data_parallel_rpc_port"}
)


class RayEngines:
    """The engines of one API server that are actors; a context in which they run.

    resolution: of the API server; from the construction on with the address and key at which the engines join.
    Raises UserError where there is no Ray, or no cluster.
    """

    def __init__(self, resolution: Resolution) -> None:
        setup_logging(process="server", libraries=SERVER_LIBRARIES, config=resolution.server.log_config)
        remote = resolution.server.remote
        assert remote is not None
        self._cluster = Cluster(FLAG)
        self._key = MadeKey()
        given = resolution.given
        address = remote.address if "data_parallel_address" in given else self._cluster.address
        port = remote.port if "data_parallel_rpc_port" in given else free_ports(address, 1)
        self._remote = msgspec.structs.replace(remote, address=address, port=port, key_file=self._key.path)
        server = msgspec.structs.replace(resolution.server, remote=self._remote)
        self.resolution = dataclasses.replace(resolution, server=server)
        self._ranks = range(remote.num_own, remote.group_size)
        self._group: Any = None
        self._actors: list[Any] = []
        self._running: dict[Any, int] = {}
        self._is_over = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Reserve room and start all engines. Raises CoreError when Ray has no place."""
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _start(self) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray = self._cluster.ray
        threads = (self.resolution.given.get("platform_config") or {}).get("threads")
        threads = int(threads or self._cluster.share(len(self._ranks)))
        self._group = self._cluster.reserve(
            [{"CPU": float(threads)} for _ in self._ranks], "PACK", self._remote.patience_s
        )
        actor = ray.remote(EngineActor)
        for place, rank in enumerate(self._ranks):
            started = actor.options(
                num_cpus=threads,
                max_concurrency=2,  # `stop` beside `run`
                max_restarts=-1,
                max_task_retries=-1,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._group, placement_group_bundle_index=place
                ),
            ).remote(self._values(rank, threads), self._key.secret)
            self._actors.append(started)
            self._running[started.run.remote()] = rank
        self._watcher = threading.Thread(target=self._watch, name="ray-watch", daemon=True)
        self._watcher.start()

    def _values(self, rank: int, threads: int) -> bytes:
        """Return the arguments of one engine's command, as JSON."""
        fields = schema().fields
        values = {
            name: value
            for name, value in self.resolution.given.items()
            if name not in OF_THE_API_SERVER and not is_for_api_servers(fields[name])
        }
        values |= {
            "platform_config": {**(values.get("platform_config") or {}), "threads": threads},
            "headless": True,
            "data_parallel_backend": "ray",
            "data_parallel_size": self._remote.group_size,
            "data_parallel_size_local": 1,
            "data_parallel_start_rank": rank,
            "data_parallel_address": self._remote.address,
            "data_parallel_rpc_port": self._remote.port,
        }
        return msgspec.json.encode(values)

    def _watch(self) -> None:
        """Log the end of each engine that Ray does not start again."""
        ray = self._cluster.ray
        while self._running and not self._is_over.is_set():
            ended, _ = ray.wait(list(self._running), num_returns=1, timeout=LOOK_S)
            for reference in ended:
                rank = self._running.pop(reference)
                try:
                    ray.get(reference)
                except Exception as error:
                    if not self._is_over.is_set():
                        cause = getattr(error, "cause", None) or error
                        logger.error("Engine %d, an actor of Ray, is not started again: %s", rank, cause)

    def _close(self) -> None:
        if self._is_over.is_set():
            return
        self._is_over.set()
        if self._watcher is not None:
            self._watcher.join()
        ray = self._cluster.ray
        try:
            for actor in self._actors:
                actor.stop.remote()
            if self._running:
                ray.wait(list(self._running), num_returns=len(self._running), timeout=END_S)
            for actor in self._actors:
                ray.kill(actor)
            if self._group is not None:
                ray.util.remove_placement_group(self._group)
        except Exception as error:  # of a cluster that is gone, whose actors are gone as well
            logger.warning("Ray cannot end the engines: %s", error)
        self._cluster.close()
        self._key.close()
