"""Arguments about the running engine: its timeouts and restarts, its log and its metrics.

Owns: declarations only. Called by: schema.
"""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


class EngineArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Engine process, log and metrics."""

    place: ClassVar[int] = 120

    enable_log_requests: Annotated[bool, Arg("Log each request.")] = False
    max_log_len: Annotated[int | None, Arg("Most characters or token ids of a prompt in the log.", ge=0)] = None
    disable_log_stats: Annotated[bool, Arg("No periodic line with statistics.")] = False
    kv_cache_metrics: Annotated[bool, Arg("Measure how long KV blocks stay cached, idle and wait for reuse.")] = False
    kv_cache_metrics_sample: Annotated[float, Arg("Share of blocks that are measured.", gt=0, le=1)] = 0.01
    engine_stall_timeout: Annotated[
        float,
        Arg(
            "Seconds that the engine may be silent although requests (or a question of its health) wait for it, before "
            "/health answers 503. One step of a long prompt is silent from its beginning to its end.",
            gt=0,
        ),
    ] = 120.0
    engine_restarts: Annotated[
        int,
        Arg(
            "How often an engine that dies is started again within --engine-restart-window; running requests then go on "
            "where they were. One death more ends the server. 0: every death does.",
            ge=0,
        ),
    ] = 20
    engine_restart_window: Annotated[float, Arg("Seconds in which --engine-restarts are counted.", gt=0)] = 600.0
    engine_restart_backoff: Annotated[
        float,
        Arg(
            "Seconds before the second restart in a row; each further one waits twice as long, up to 30 s. An engine that "
            "has run for 5 s begins a new row, and the first restart does not wait.",
            ge=0,
        ),
    ] = 0.5
    engine_wedge_timeout: Annotated[
        float,
        Arg(
            "Seconds after which an engine hangs, when one step lasts longer than that and than ten times what steps like it "
            "take, or when it says nothing between two steps. It is then killed, with its stacks in the log, and started "
            "again. 0, or --engine-restarts 0: never.",
            ge=0,
        ),
    ] = 10.0
    engine_utility_timeout: Annotated[
        float,
        Arg(
            "Seconds after which an engine hangs in a call that is known to take long: sleep, wake-up, new weights, the reset "
            "of a big prefix cache, a profile. It holds in place of --engine-wedge-timeout, and of --engine-stall-timeout "
            "for /health. 0: such a call may take any time.",
            ge=0,
        ),
    ] = 1800.0
    standby_engine: Annotated[
        bool,
        Arg(
            "Keep a second process ready that has imported everything but loaded nothing (about 180 MB), so that an engine "
            "that dies is replaced in a third of the time."
        ),
    ] = False
