"""The start of an engine on several hosts, on the first one.

Owns: the order in which nodes meet and ranks are started. Never does: build a worker. Called by: the executor.
"""

from __future__ import annotations

from core.api.config import EngineConfig
from core_distributed.arguments import RanksArguments
from core_distributed.hosts.children import ChildrenOfHosts
from core_distributed.hosts.likeness import config_for
from core_distributed.hosts.nodes import Nodes
from core_distributed.hosts.started import StartedHosts
from core_distributed.layout import Groups, Layout
from core_distributed.rank_config import rank_config


def open_hosts(
    config: EngineConfig,
    arguments: RanksArguments,
    layout: Layout,
    memory: int,
    room: int,
    started: StartedHosts | None = None,
) -> tuple[Groups, ChildrenOfHosts, list[EngineConfig]]:
    """Wait for all nodes and have them start their ranks. Returns rank 0's groups, the others, and all configurations.

    memory: descriptor of this host's memory. room: bytes of a slot. started: the other hosts, if they are ours to start.
    Raises CoreError when a node does not come.
    """
    nodes = Nodes(config, arguments)
    groups: Groups | None = None
    try:
        if started is not None:
            started.start(nodes)
        meeting = nodes.wait()
        # An earlier engine's ranks have ended by now on every host, so nothing of them comes through the new sockets.
        groups = Groups(memory, 0, layout, room, meeting)
        children = ChildrenOfHosts(layout, memory, room, groups.end, nodes, meeting, started)
    except BaseException:
        nodes.end()
        if started is not None:
            started.close()
        if groups is not None:
            groups.end()
            groups.close(0.0)
        raise
    configs = []
    for rank in range(layout.size):
        host = layout.host_of(rank)
        own = config if host == 0 else config_for(config, nodes.config(host))
        configs.append(rank_config(own, rank % layout.of_host, layout.of_host, leads=rank == 0))
    return groups, children, configs
