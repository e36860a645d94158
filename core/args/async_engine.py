"""Arguments about the engine that serves many clients. Owns: declarations only. Called by: schema."""

from typing import Annotated

import msgspec

from core.args.arg import Arg


class AsyncEngineArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in the log, and an engine that hangs."""

    enable_log_requests: Annotated[bool, Arg("Log each request.")] = False
    engine_stall_timeout: Annotated[
        float,
        Arg(
            "Seconds that the engine may be silent although requests (or a question of its health) wait for it, before "
            "/health answers 503. One step of a long prompt is silent from its beginning to its end.",
            gt=0,
        ),
    ] = 120.0
