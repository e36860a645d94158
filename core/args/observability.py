"""Arguments about what the engine reports. Owns: declarations only. Called by: schema."""

from __future__ import annotations

from typing import Annotated

import msgspec

from core.args.arg import Arg


class ObservabilityArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Logging and statistics."""

    disable_log_stats: Annotated[bool, Arg("No periodic line with statistics.")] = False
    enable_log_requests: Annotated[bool, Arg("Log each request.")] = False
    max_log_len: Annotated[int | None, Arg("Most characters or token ids of a prompt in the log.", ge=0)] = None
