"""Arguments about several processes that compute one model. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

import msgspec

from core.args.arg import Arg, ArgumentGroup


class EplbKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --eplb-config."""

    window_size: Annotated[int, Arg("Latest steps whose choices of experts count.", ge=1)] = 1000
    step_interval: Annotated[int, Arg("Steps between two decisions about where experts belong.", ge=1)] = 3000
    num_redundant_experts: Annotated[
        int, Arg("Slots of each layer beyond one for each expert: as many experts have a copy on another rank.", ge=0)
    ] = 0
    log_balancedness: Annotated[
        bool, Arg("Log how evenly the choices of the latest steps are spread over ranks: 1 is even.")
    ] = False
    log_balancedness_interval: Annotated[int, Arg("Steps between two such lines.", ge=1)] = 1
    use_async: Annotated[bool, Arg("No effect: experts move one at a time between steps in any case.")] = False
    policy: Annotated[str, Arg("How places are chosen.", choices=("default",))] = "default"


class ParallelArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Ranks."""

    place: ClassVar[int] = 115

    tensor_parallel_size: Annotated[
        int,
        Arg(
            "Ranks: processes of this host that each hold an equal part of every layer and compute a step together; threads "
            "and the KV cache are shared out among them.",
            short=("tp",),
            ge=1,
            le=64,
        ),
    ] = 1
    worker_extension_cls: Annotated[
        str | None,
        Arg(
            "A class, as module:Class or module.Class, whose public methods POST /collective_rpc calls between steps; `self` "
            "has the worker's attributes too. One rank, one engine."
        ),
    ] = None
    pipeline_parallel_size: Annotated[
        int,
        Arg(
            "Stages: parts of the model's layers, each on ranks of its own, which compute different steps at the same time; "
            "threads and the KV cache are shared out among all ranks.",
            short=("pp",),
            ge=1,
            le=64,
        ),
    ] = 1
    distributed_executor_backend: Annotated[
        str | None,
        Arg(
            "What ranks run on: mp (processes of this host), or uni (the engine's own process, for one rank). Unset: what "
            "--tensor-parallel-size and --pipeline-parallel-size need.",
            choices=("uni", "mp"),
        ),
    ] = None
    distributed_timeout_seconds: Annotated[
        float,
        Arg(
            "Seconds that a rank may be silent in a step; then the engine ends with the rank's name, and is started again.",
            gt=0,
            aliases=("cpu_distributed_timeout_seconds",),
        ),
    ] = 30.0
    disable_custom_all_reduce: Annotated[
        bool,
        Arg("Add the sums of ranks with gloo instead of the native code in shared memory; much slower, the same bits."),
    ] = False
    enable_expert_parallel: Annotated[
        bool,
        Arg(
            "Choose where experts lie. Ranks hold whole experts in any case, by default equal ranges of them.",
            short=("ep",),
        ),
    ] = False
    expert_placement_strategy: Annotated[
        str,
        Arg(
            "Which experts of a layer a rank holds at the start: linear (a range) or round_robin (every N-th of N ranks).",
            choices=("linear", "round_robin"),
        ),
    ] = "linear"
    all2all_backend: Annotated[
        str,
        Arg(
            "How tokens and outputs of experts reach other ranks: all ranks have all tokens and add up outputs.",
            choices=("allgather_reducescatter",),
        ),
    ] = "allgather_reducescatter"
    enable_ep_weight_filter: Annotated[bool, Arg("No effect: a rank reads its own experts alone.")] = False
    enable_eplb: Annotated[
        bool, Arg("Move experts between ranks while the engine runs, so that all compute equally many choices.")
    ] = False
    eplb_config: Annotated[dict[str, Any] | None, Arg("How experts are moved (--enable-eplb).", keys=EplbKeys)] = None
    eplb_window_size: Annotated[int | None, Arg("Older name of --eplb-config.window-size.", ge=1)] = None
    eplb_step_interval: Annotated[int | None, Arg("Older name of --eplb-config.step-interval.", ge=1)] = None
    eplb_log_balancedness: Annotated[bool | None, Arg("Older name of --eplb-config.log-balancedness.")] = None
    num_redundant_experts: Annotated[int | None, Arg("Older name of --eplb-config.num-redundant-experts.", ge=0)] = None
