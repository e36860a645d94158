"""Arguments about several processes that compute one model. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

import msgspec

from core.args.arg import Arg, ArgumentGroup


class EplbKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --eplb-config."""

    window_size: Annotated[int, Arg("Latest steps whose choices of experts count.", ge=1, since="0.2.0")] = 1000
    step_interval: Annotated[
        int, Arg("Steps between two decisions about where experts belong.", ge=1, since="0.2.0")
    ] = 3000
    num_redundant_experts: Annotated[
        int,
        Arg(
            "Slots of each layer beyond one for each expert: as many experts have a copy on another rank.",
            ge=0,
            since="0.2.0",
        ),
    ] = 0
    log_balancedness: Annotated[
        bool, Arg("Log how evenly the choices of the latest steps are spread over ranks: 1 is even.", since="0.2.0")
    ] = False
    log_balancedness_interval: Annotated[int, Arg("Steps between two such lines.", ge=1, since="0.2.0")] = 1
    use_async: Annotated[
        bool, Arg("No effect: experts move one at a time between steps in any case.", since="0.2.0")
    ] = False
    policy: Annotated[str, Arg("How places are chosen.", choices=("default",), since="0.2.0")] = "default"


class ParallelArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Ranks."""

    place: ClassVar[int] = 115

    tensor_parallel_size: Annotated[
        int,
        Arg(
            "Ranks: processes, of this host or several (--nnodes), that each hold an equal part of every layer and compute a "
            "step together; threads and the KV cache are shared out among those of a host.",
            short=("tp",),
            ge=1,
            le=64,
            since="0.2.0",
        ),
    ] = 1
    worker_cls: Annotated[
        str,
        Arg(
            "A class, as module:Class or module.Class, that stands in for the worker of the executors torch, mp and ray: a "
            "subclass of core_runtime.executor.worker:Worker. auto: that class itself.",
            since="0.2.0",
        ),
    ] = "auto"
    worker_extension_cls: Annotated[
        str | None,
        Arg(
            "A class, as module:Class or module.Class, whose public methods POST /collective_rpc calls between steps; `self` "
            "has the worker's attributes too. One rank, one engine.",
            since="0.2.0",
        ),
    ] = None
    pipeline_parallel_size: Annotated[
        int,
        Arg(
            "Stages: parts of the model's layers, each on ranks of its own, which compute different steps at the same time; "
            "threads and the KV cache are shared out among all ranks of a host.",
            short=("pp",),
            ge=1,
            le=64,
            since="0.2.0",
        ),
    ] = 1
    decode_context_parallel_size: Annotated[
        int,
        Arg(
            "Ranks of --tensor-parallel-size that hold the same heads of keys (or a latent) and divide their keys and values "
            "by positions, so that each stores one part of the KV cache.",
            short=("dcp",),
            ge=1,
            le=64,
            since="0.2.0",
        ),
    ] = 1
    cp_kv_cache_interleave_size: Annotated[
        int | None,
        Arg(
            "Successive tokens that a rank of --decode-context-parallel-size stores, a multiple of 128; a block has as many on "
            "each of them. Unset, or 1: 128.",
            ge=1,
            le=1024,
            aliases=("dcp_kv_cache_interleave_size",),
            since="0.2.0",
        ),
    ] = None
    dcp_comm_backend: Annotated[
        str,
        Arg(
            "How ranks of --decode-context-parallel-size exchange; both names mean the engine's own way, since bits and bytes "
            "are the same.",
            choices=("ag_rs", "a2a"),
            since="0.2.0",
        ),
    ] = "ag_rs"
    distributed_executor_backend: Annotated[
        str | None,
        Arg(
            "What ranks run on: mp (processes that the engine starts), ray (actors of a Ray cluster), external_launcher "
            "(processes that torchrun or the like has started with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT), or uni (the "
            "engine's own process, for one rank). Unset: what --tensor-parallel-size and --pipeline-parallel-size need.",
            choices=("uni", "mp", "ray", "external_launcher"),
            since="0.2.0",
        ),
    ] = None
    ray_workers_use_nsight: Annotated[
        bool,
        Arg(
            "Run the actors of --distributed-executor-backend ray with Nsight Systems, as their runtime environment says; "
            "nsys must be installed on their nodes.",
            since="0.2.0",
        ),
    ] = False
    nnodes: Annotated[
        int,
        Arg(
            "Nodes: hosts with equally many ranks each. Each runs this command with the same arguments and a --node-rank of "
            "its own; that of node 0 answers requests.",
            short=("n",),
            ge=1,
            le=64,
            since="0.2.0",
        ),
    ] = 1
    node_rank: Annotated[
        int,
        Arg(
            "Number of this node. Others than 0 have no HTTP server and serve the engine of node 0.",
            short=("r",),
            ge=0,
            since="0.2.0",
        ),
    ] = 0
    master_addr: Annotated[
        str,
        Arg(
            "Address of node 0, at which it listens for the others. One that other machines reach needs --engine-key-file; "
            "other nodes use the interface of their route to it.",
            since="0.2.0",
        ),
    ] = "127.0.0.1"
    master_port: Annotated[
        int, Arg("Port at that address; ranks exchange sums at the ports after it.", ge=1, le=65535, since="0.2.0")
    ] = 29501
    distributed_timeout_seconds: Annotated[
        float,
        Arg(
            "Seconds that a rank or a node may be silent in a step; then the engine ends with its name, and is started again.",
            gt=0,
            aliases=("cpu_distributed_timeout_seconds",),
            since="0.2.0",
        ),
    ] = 30.0
    disable_custom_all_reduce: Annotated[
        bool,
        Arg(
            "Add the sums of ranks with gloo instead of the native code in shared memory; much slower, the same bits.",
            since="0.2.0",
        ),
    ] = False
    enable_expert_parallel: Annotated[
        bool,
        Arg(
            "Choose where experts lie. Ranks hold whole experts in any case, by default equal ranges of them.",
            short=("ep",),
            since="0.2.0",
        ),
    ] = False
    expert_placement_strategy: Annotated[
        str,
        Arg(
            "Which experts of a layer a rank holds at the start: linear (a range) or round_robin (every N-th of N ranks).",
            choices=("linear", "round_robin"),
            since="0.2.0",
        ),
    ] = "linear"
    all2all_backend: Annotated[
        str,
        Arg(
            "How tokens and outputs of experts reach other ranks: all ranks have all tokens and add up outputs.",
            choices=("allgather_reducescatter",),
            since="0.2.0",
        ),
    ] = "allgather_reducescatter"
    enable_ep_weight_filter: Annotated[bool, Arg("No effect: a rank reads its own experts alone.", since="0.2.0")] = (
        False
    )
    enable_eplb: Annotated[
        bool,
        Arg(
            "Move experts between ranks while the engine runs, so that all compute equally many choices.", since="0.2.0"
        ),
    ] = False
    eplb_config: Annotated[
        dict[str, Any] | None, Arg("How experts are moved (--enable-eplb).", keys=EplbKeys, since="0.2.0")
    ] = None
    eplb_window_size: Annotated[int | None, Arg("Older name of --eplb-config.window-size.", ge=1, since="0.2.0")] = None
    eplb_step_interval: Annotated[
        int | None, Arg("Older name of --eplb-config.step-interval.", ge=1, since="0.2.0")
    ] = None
    eplb_log_balancedness: Annotated[
        bool | None, Arg("Older name of --eplb-config.log-balancedness.", since="0.2.0")
    ] = None
    num_redundant_experts: Annotated[
        int | None, Arg("Older name of --eplb-config.num-redundant-experts.", ge=0, since="0.2.0")
    ] = None
