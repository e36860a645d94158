"""Arguments about ranks, nodes and replicas. Owns: declarations only. Called by: schema."""

from typing import Annotated

import msgspec

from core.args.arg import Arg

_ONE_RANK = "the engine runs on one rank"
_ONE_ENGINE = "one engine is started"
_ONE_NODE = "the engine runs on one node"
_EXPERTS = "experts are not spread over ranks"
_NO_SPLIT = "a batch is never split"


class EplbKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --eplb-config."""

    window_size: Annotated[int, Arg("Steps over which the load is recorded.", ge=1)] = 1000
    step_interval: Annotated[int, Arg("Steps between two rearrangements.", ge=1)] = 3000
    num_redundant_experts: Annotated[int, Arg("Additional copies of experts.", ge=0)] = 0
    log_balancedness: Annotated[bool, Arg("Log how even the load is.")] = False
    log_balancedness_interval: Annotated[int, Arg("Steps between two such lines.", ge=1)] = 1
    use_async: Annotated[bool, Arg("Move experts while steps run.")] = False
    policy: Annotated[str, Arg("Rule that places the copies.")] = "default"
    communicator: Annotated[str | None, Arg("What moves the weights. Unset: derived.")] = None


class ParallelArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Parallelism."""

    tensor_parallel_size: Annotated[
        int, Arg("Number of tensor-parallel ranks.", short=("tp",), ge=1, unserved=_ONE_RANK)
    ] = 1
    pipeline_parallel_size: Annotated[
        int, Arg("Number of pipeline stages.", short=("pp",), ge=1, unserved=_ONE_RANK)
    ] = 1
    decode_context_parallel_size: Annotated[
        int,
        Arg("Ranks that share a sequence's KV cache while decoding.", short=("dcp",), ge=1, unserved=_ONE_RANK),
    ] = 1
    prefill_context_parallel_size: Annotated[
        int, Arg("Ranks that share a sequence in a prefill.", short=("pcp",), ge=1, unserved=_ONE_RANK)
    ] = 1
    cp_kv_cache_interleave_size: Annotated[
        int,
        Arg(
            "Tokens in a row that one rank keeps before the next takes over; divides the block size.",
            ge=1,
            unserved=_ONE_RANK,
        ),
    ] = 1
    dcp_comm_backend: Annotated[
        str, Arg("How ranks exchange attention while decoding.", choices=("ag_rs", "a2a"), unserved=_ONE_RANK)
    ] = "ag_rs"
    distributed_executor_backend: Annotated[
        str | None,
        Arg(
            "How workers are started. Unset: in the engine's process.",
            choices=("uni", "mp", "ray", "external_launcher"),
            served=(None, "uni"),
            unserved="the worker runs in the engine's process",
        ),
    ] = None
    distributed_timeout_seconds: Annotated[
        int | None, Arg("Seconds that ranks wait for each other.", gt=0, unserved=_ONE_RANK)
    ] = None
    worker_cls: Annotated[
        str, Arg("Import path of the worker; auto: the platform's.", unserved="the worker cannot be replaced")
    ] = "auto"
    worker_extension_cls: Annotated[
        str,
        Arg("Import path of a class that adds methods to the worker.", unserved="the worker cannot be extended"),
    ] = ""
    max_parallel_loading_workers: Annotated[
        int | None, Arg("Most ranks that load weights at the same time.", ge=1, unserved=_ONE_RANK)
    ] = None
    disable_custom_all_reduce: Annotated[
        bool, Arg("Sum over ranks with the library's collective only.", unserved=_ONE_RANK)
    ] = False
    ray_workers_use_nsight: Annotated[
        bool, Arg("Profile Ray workers with nsight.", unserved="workers are not started with Ray")
    ] = False
    data_parallel_size: Annotated[int, Arg("Number of engine replicas.", short=("dp",), ge=1, unserved=_ONE_ENGINE)] = 1
    data_parallel_size_local: Annotated[
        int | None, Arg("Replicas on this node. Unset: all.", short=("dpl",), ge=0, unserved=_ONE_ENGINE)
    ] = None
    data_parallel_rank: Annotated[
        int | None,
        Arg("Rank of this replica; the balancing is then outside.", short=("dpn",), ge=0, unserved=_ONE_ENGINE),
    ] = None
    data_parallel_start_rank: Annotated[
        int | None, Arg("First rank on a further node.", short=("dpr",), ge=0, unserved=_ONE_ENGINE)
    ] = None
    data_parallel_address: Annotated[
        str | None, Arg("Address of the replicas' first node.", short=("dpa",), unserved=_ONE_ENGINE)
    ] = None
    data_parallel_rpc_port: Annotated[
        int | None,
        Arg("Port on which replicas talk.", short=("dpp",), ge=0, le=65535, unserved=_ONE_ENGINE),
    ] = None
    data_parallel_backend: Annotated[
        str, Arg("How replicas are started.", short=("dpb",), choices=("mp", "ray"), unserved=_ONE_ENGINE)
    ] = "mp"
    data_parallel_hybrid_lb: Annotated[
        bool, Arg("Balance on each node, with another balancer between nodes.", short=("dph",), unserved=_ONE_ENGINE)
    ] = False
    data_parallel_external_lb: Annotated[
        bool, Arg("Each replica has its own endpoint, balanced outside.", short=("dpe",), unserved=_ONE_ENGINE)
    ] = False
    disable_nccl_for_dp_synchronization: Annotated[
        bool | None, Arg("Replicas keep step over the host network. Unset: derived.", unserved=_ONE_ENGINE)
    ] = None
    nnodes: Annotated[int, Arg("Number of nodes.", short=("n",), ge=1, unserved=_ONE_NODE)] = 1
    node_rank: Annotated[int, Arg("Index of this node.", short=("r",), ge=0, unserved=_ONE_NODE)] = 0
    master_addr: Annotated[str, Arg("Address of the first node.", unserved=_ONE_NODE)] = "127.0.0.1"
    master_port: Annotated[int, Arg("Port of the first node.", ge=0, le=65535, unserved=_ONE_NODE)] = 29501
    numa_bind: Annotated[bool, Arg("Bind workers to NUMA nodes.", unserved="the platform places its threads")] = False
    numa_bind_nodes: Annotated[
        list[int] | None,
        Arg(
            "NUMA node of each device. Unset: from the topology.",
            commas=True,
            unserved="the platform places its threads",
        ),
    ] = None
    numa_bind_cpus: Annotated[
        list[str] | None,
        Arg("CPU list of each worker, in place of a node.", unserved="the platform places its threads"),
    ] = None
    enable_expert_parallel: Annotated[
        bool, Arg("Give each rank whole experts instead of a slice of all.", short=("ep",), unserved=_EXPERTS)
    ] = False
    enable_ep_weight_filter: Annotated[bool, Arg("Read only the experts of this rank.", unserved=_EXPERTS)] = False
    expert_placement_strategy: Annotated[
        str,
        Arg("Experts of a rank: a run of them, or every n-th.", choices=("linear", "round_robin"), unserved=_EXPERTS),
    ] = "linear"
    all2all_backend: Annotated[
        str,
        Arg(
            "How tokens reach the ranks of their experts.",
            choices=(
                *("allgather_reducescatter", "naive", "pplx", "deepep_high_throughput", "deepep_low_latency", "mori"),
                *("nixl_ep", "flashinfer_all2allv", "flashinfer_nvlink_one_sided", "flashinfer_nvlink_two_sided"),
            ),
            unserved=_EXPERTS,
        ),
    ] = "allgather_reducescatter"
    enable_elastic_ep: Annotated[
        bool, Arg("Allow the number of expert-parallel replicas to change while serving.", unserved=_EXPERTS)
    ] = False
    enable_eplb: Annotated[bool, Arg("Move experts between ranks to even the load.", unserved=_EXPERTS)] = False
    eplb_config: Annotated[dict[str, object], Arg("How experts are moved.", keys=EplbKeys, unserved=_EXPERTS)] = {}
    enable_dbo: Annotated[
        bool, Arg("Run two halves of a batch in turn, so that communication hides.", unserved=_NO_SPLIT)
    ] = False
    dbo_decode_token_threshold: Annotated[
        int, Arg("Split a decode batch above so many tokens.", ge=0, unserved=_NO_SPLIT)
    ] = 32
    dbo_prefill_token_threshold: Annotated[
        int, Arg("Split a batch with prefill above so many tokens.", ge=0, unserved=_NO_SPLIT)
    ] = 512
    ubatch_size: Annotated[int, Arg("Number of parts of a split batch; 0: none.", ge=0, unserved=_NO_SPLIT)] = 0
