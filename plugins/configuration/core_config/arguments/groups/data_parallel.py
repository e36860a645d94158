"""Arguments about several engines with the same weights. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


class DataParallelArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Engines with the same weights."""

    place: ClassVar[int] = 116

    data_parallel_size: Annotated[
        int,
        Arg(
            "Engines with the same weights. This command starts all of them, behind one address, unless "
            "--data-parallel-size-local, --data-parallel-rank or --data-parallel-hybrid-lb is given. Each has a KV cache of "
            "its own; compute threads are shared out.",
            ge=1,
            le=1024,
            short=("dp",),
            since="0.2.0",
        ),
    ] = 1
    data_parallel_rank: Annotated[
        int | None,
        Arg(
            "This command is the engine of this rank alone, with an address of its own; a load balancer stands before "
            "all of them. Beside --headless: of this rank in the group of an API server.",
            ge=0,
            short=("dpn",),
            since="0.2.0",
        ),
    ] = None
    data_parallel_start_rank: Annotated[
        int | None, Arg("Rank of the first engine of this command; unset: 0.", ge=0, short=("dpr",), since="0.2.0")
    ] = None
    data_parallel_backend: Annotated[
        str,
        Arg(
            "What starts the engines: mp (processes of this command), or ray (all but --data-parallel-size-local of them are "
            "actors of a Ray cluster).",
            choices=("mp", "ray"),
            short=("dpb",),
            since="0.2.0",
        ),
    ] = "mp"
    data_parallel_hybrid_lb: Annotated[
        bool,
        Arg(
            "This command starts --data-parallel-size-local of the engines, behind its own address; a load balancer stands "
            "before all commands.",
            short=("dph",),
            since="0.2.0",
        ),
    ] = False
    data_parallel_external_lb: Annotated[
        bool, Arg("As --data-parallel-rank, which has to be given, implies.", short=("dpe",), since="0.2.0")
    ] = False
    data_parallel_multi_port_external_lb: Annotated[
        bool,
        Arg(
            "This command starts a server for each of its engines (--data-parallel-size-local, from --data-parallel-start-rank "
            "on), at --port and the ports after it; a load balancer stands before all of them. It starts one that dies again.",
            since="0.2.0",
        ),
    ] = False
    enable_elastic_ep: Annotated[
        bool,
        Arg(
            "The number of engines changes while the server runs: POST /scale_elastic_ep, or `core scale`. "
            "--data-parallel-size is the number at the start.",
            since="0.3.0",
        ),
    ] = False
    elastic_ep_max_dp_size: Annotated[
        int | None,
        Arg(
            "Most engines that there may be with --enable-elastic-ep; compute threads are shared out among as many. Unset: "
            "--data-parallel-size.",
            ge=1,
            le=1024,
            since="0.3.0",
        ),
    ] = None
    aggregate_engine_logging: Annotated[
        bool, Arg("Log one line with the statistics of all engines, in place of one for each.", since="0.2.0")
    ] = False
