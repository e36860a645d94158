"""Arguments about the engine that serves many clients. Owns: declarations only. Called by: schema."""

from typing import Annotated

import msgspec

from core.args.arg import Arg


class AsyncEngineArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in the log."""

    enable_log_requests: Annotated[bool, Arg("Log each request.")] = False
