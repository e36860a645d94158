"""The hosts of ranks that are actors of Ray: one bundle of a placement group each, the first of which is the engine's own.

Owns: the placement group, the actors, and the watch over them. Never does: move plans or sums, which go through the sockets of
`core_distributed.hosts` as between any nodes. Called by: the maker of the executor `ray`, and the start of an engine on several
hosts.

Ray ends actors and placement group when this process ends, however that happens.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Final

import msgspec

from core.api.config import EngineConfig
from core.api.errors import UserError
from core_distributed.arguments import RanksArguments, RayArguments
from core_distributed.hosts.free_ports import free_ports
from core_distributed.hosts.made_key import MadeKey
from core_distributed.hosts.nodes import Nodes
from core_distributed.layout import Layout, num_wires
from core_distributed.on_ray.actor import HostActor
from core_distributed.on_ray.cluster import Cluster
from core_distributed.rank_config import CPU

logger = logging.getLogger(__name__)

HANDED_ON: Final = ("HF_HOME", "HF_HUB_OFFLINE", "TMPDIR")
"""Variables of this process's environment that actors get. Their environment is otherwise that of their Ray node."""
LOOK_S: Final = 0.25
END_S: Final = 2.0
"""Limit of seconds in which actors end by themselves."""
LAST_WORDS_S: Final = 0.2
"""Seconds for which a node's own account of its end is waited for."""
LONGEST_TEXT: Final = 500
PINNED: Final = 0.001
"""Share of the resource that each node of a cluster has under its address; a bundle with it is placed there."""


class RayHosts:
    """The other hosts of one engine; implements `core_distributed.hosts.started.StartedHosts`.

    arguments: those of the ranks, with address, ports and key. config: the engine's; from `place` on with the threads and the
    memory of its bundle. Raises UserError where there is no Ray, or no cluster.
    """

    def __init__(self, config: EngineConfig, arguments: RayArguments) -> None:
        self._own = arguments
        self._cluster = Cluster("--distributed-executor-backend ray")
        self._key = MadeKey()
        layout = Layout(arguments.ranks, arguments.stages, arguments.nodes)
        address = arguments.address or self._cluster.address
        port = arguments.port or free_ports(address, 1 + num_wires(layout))
        given = {name: getattr(arguments, name) for name in RanksArguments.__struct_fields__}
        self.arguments = RanksArguments(**{**given, "address": address, "port": port, "key_file": self._key.path})
        self._threads = _threads_of(config) or self._cluster.share(arguments.nodes)
        self.config = config
        self._configs: list[EngineConfig] = []
        self._group: Any = None
        self._actors: list[Any] = []
        self._running: dict[Any, int] = {}
        self._closed = False
        self._watcher: threading.Thread | None = None

    def place(self) -> None:
        """Reserve the bundles. Raises CoreError when Ray has no place."""
        own = self._own
        bundles: list[dict[str, float]] = [{"CPU": self._threads} for _ in range(own.nodes)]
        bundles[0][f"node:{self._cluster.address}"] = PINNED
        strategy = "STRICT_SPREAD" if own.spread else "PACK"
        self._group = self._cluster.reserve(bundles, strategy, own.join_seconds)
        homes: dict[int, str] = self._cluster.ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        for number in range(own.nodes):
            neighbours = sum(home == homes[number] for home in homes.values())
            self._configs.append(_config_of(self.config, self._threads, neighbours))
        self.config = self._configs[0]

    def start(self, nodes: Nodes) -> None:
        """Start an actor in each bundle but the first."""
        arguments = msgspec.msgpack.encode(msgspec.structs.replace(self.arguments, key_file=None))
        actor = self._cluster.ray.remote(HostActor)
        for number in range(1, self.arguments.nodes):
            config = msgspec.msgpack.encode(self._configs[number])
            started = actor.options(**self._options(number)).remote(config, arguments, number, self._key.secret)
            self._actors.append(started)
            self._running[started.run.remote()] = number
        self._watcher = threading.Thread(target=self._watch, args=(nodes,), name="ray-watch", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """End actors and placement group, and leave the cluster. Does nothing when called again."""
        if self._closed:
            return
        self._closed = True
        if self._watcher is not None:
            self._watcher.join()
        ray = self._cluster.ray
        try:
            if self._running:
                ray.wait(list(self._running), num_returns=len(self._running), timeout=END_S)
            for actor in self._actors:
                ray.kill(actor)
            if self._group is not None:
                ray.util.remove_placement_group(self._group)
        except Exception as error:  # of a cluster that is gone, whose actors are gone as well
            logger.warning("Ray cannot end the actors of this engine: %s", _shortened(error))
        self._cluster.close()
        self._key.close()

    def _options(self, number: int) -> dict[str, Any]:
        """Return how the actor of a node is started."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=number)
        environment: dict[str, Any] = {}
        handed_on = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
        if handed_on:
            environment["env_vars"] = handed_on
        if self._own.nsight:
            environment["nsight"] = "default"
        if number == 1:
            names = ", ".join(handed_on) or "none"
            logger.info("Environment variables of this process that Ray's actors get: %s", names)
        return {
            "num_cpus": self._threads,
            "max_restarts": 0,  # the next engine starts actors of its own
            "scheduling_strategy": bundle,
            **({"runtime_env": environment} if environment else {}),
        }

    def _watch(self, nodes: Nodes) -> None:
        """Report each actor whose work ends before this engine's."""
        ray = self._cluster.ray
        while self._running and not self._closed:
            ended, _ = ray.wait(list(self._running), num_returns=1, timeout=LOOK_S)
            for reference in ended:
                number = self._running.pop(reference)
                how = self._end_of(reference)
                if not self._closed:
                    nodes.report(f"{nodes.where(number)} {how}")

    def _end_of(self, reference: Any) -> str:
        """Return how an actor's work has ended, as a verb phrase."""
        ray = self._cluster.ray
        try:
            ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            return f"could not run: {_shortened(error.cause)}"
        except ray.exceptions.RayActorError as error:
            logger.error("Ray says: %s", error)
            return "was lost with its Ray actor"
        except Exception as error:
            return f"could not run: {_shortened(error)}"
        time.sleep(LAST_WORDS_S)
        return "has ended"


def _threads_of(config: EngineConfig) -> int | None:
    """Return the compute threads that the user has asked for."""
    given: int | None = config.plugins.arguments.get(CPU, {}).get("threads")
    return given


def _config_of(config: EngineConfig, threads: int, neighbours: int) -> EngineConfig:
    """Return the configuration of a bundle. neighbours: bundles on its machine, which share the memory of the KV cache."""
    own = {**config.plugins.arguments.get(CPU, {}), "threads": threads}
    if neighbours > 1 and own.get("thread_binding", "none") != "none":
        raise UserError(
            f"--platform-config.thread_binding {own['thread_binding']}: Ray has placed {neighbours} bundles of this engine on "
            "one node, whose threads would have the same processors; leave it out, or give --nnodes."
        )
    plugins = msgspec.structs.replace(config.plugins, arguments={**config.plugins.arguments, CPU: own})
    cache = msgspec.structs.replace(config.cache, memory_bytes=config.cache.memory_bytes // neighbours)
    return msgspec.structs.replace(config, plugins=plugins, cache=cache)


def _shortened(error: BaseException) -> str:
    """Return an error's text in one line. Of a text with a traceback, which Ray hands on, the first and the last line count."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = f"{lines[0]} {lines[-1]}" if any("Traceback" in line for line in lines) else " ".join(lines)
    return (text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "...").rstrip(".")
