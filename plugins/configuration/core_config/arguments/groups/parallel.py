"""Arguments about several processes that compute one model. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


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
