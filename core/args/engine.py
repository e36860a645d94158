"""Arguments about the engine as a process. Owns: declarations only. Called by: schema."""

from typing import Annotated

import msgspec

from core.args.arg import Arg

_ONE_SERVER = "one API server is started"


class EngineArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Engine process."""

    disable_log_stats: Annotated[bool, Arg("No periodic line with statistics.")] = False
    aggregate_engine_logging: Annotated[
        bool, Arg("One line of statistics for all replicas.", unserved="one engine is started")
    ] = False
    shutdown_timeout: Annotated[
        int | None,
        Arg(
            "Seconds that running requests have to finish at shutdown; 0: none. Unset: the server's own few seconds.",
            ge=0,
            unserved="the server's own patience cannot be changed",
        ),
    ] = None
    fail_on_environ_validation: Annotated[
        bool,
        Arg(
            "An unknown environment variable of the engine stops the start.",
            unserved="environment variables are not checked",
        ),
    ] = False
    gdn_prefill_backend: Annotated[
        str | None,
        Arg(
            "Kernels for the prefill of linear attention layers.",
            choices=("flashinfer", "triton"),
            unserved="models with recurrent state are not served",
        ),
    ] = None
    tokens_only: Annotated[
        bool, Arg("Token ids in and out, no tokenizer.", internal=True, unserved="the engine needs the tokenizer")
    ] = False
    _api_process_count: Annotated[
        int | None, Arg("How many API servers share this engine.", ge=1, internal=True, unserved=_ONE_SERVER)
    ] = None
    _api_process_rank: Annotated[
        int | None, Arg("Index of this API server among them.", ge=0, internal=True, unserved=_ONE_SERVER)
    ] = None
