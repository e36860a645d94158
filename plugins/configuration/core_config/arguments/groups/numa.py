"""Arguments about NUMA nodes. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


class NumaArgs(ArgumentGroup, frozen=True, kw_only=True):
    """NUMA nodes."""

    place: ClassVar[int] = 118

    numa_bind: Annotated[
        bool,
        Arg(
            "Bind the engine's threads, and the memory that it allocates, to a NUMA node of this machine. The start fails "
            "where the system does not do it.",
            since="0.2.0",
        ),
    ] = False
    numa_bind_nodes: Annotated[
        list[int] | None,
        Arg(
            "The node, for one rank. Unset: on a processor the node with most processors that this process may use.",
            ge=0,
            since="0.2.0",
        ),
    ] = None
    numa_bind_cpus: Annotated[
        list[str] | None,
        Arg(
            "Processors in place of the node's, such as 0-3,8, for one rank. Memory comes from their nodes, or from the node "
            "given.",
            since="0.2.0",
        ),
    ] = None
