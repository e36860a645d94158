"""Arguments about batching and order of requests. Owns: declarations only. Called by: schema."""

from __future__ import annotations

from typing import Annotated

import msgspec

from core.args.arg import Arg


class SchedulerArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduling."""

    max_num_seqs: Annotated[int | None, Arg("Most sequences in one step. Unset: the platform decides.", ge=1)] = None
    max_num_batched_tokens: Annotated[
        int | None, Arg("Token budget of one step. Unset: the platform decides.", human=True, ge=1)
    ] = None
    enable_chunked_prefill: Annotated[
        bool | None, Arg("Cut long prompts to what is left of a step's budget. Unset: on.")
    ] = None
    long_prefill_token_threshold: Annotated[
        int, Arg("Most prompt tokens of one request in one step; 0: no limit but the budget.", human=True, ge=0)
    ] = 0
    scheduling_policy: Annotated[
        str,
        Arg(
            "Order of waiting requests: by arrival, or by priority first (lower runs first).",
            choices=("fcfs", "priority"),
        ),
    ] = "fcfs"
    async_scheduling: Annotated[
        bool | None,
        Arg(
            "Plan the next step while the current one runs. Unset: derived.",
            served=(None, False),
            unserved="steps are planned one after the other",
        ),
    ] = None
    stream_interval: Annotated[
        int,
        Arg("Send streamed output every so many tokens.", ge=1, served=(1,), unserved="every token is sent at once"),
    ] = 1
