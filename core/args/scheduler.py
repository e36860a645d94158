"""Arguments about batching and order of requests. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


class SchedulerArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Scheduling."""

    place: ClassVar[int] = 50

    max_num_seqs: Annotated[int | None, Arg("Most sequences in one step. Unset: the platform decides.", ge=1)] = None
    max_num_batched_tokens: Annotated[
        int | None, Arg("Token budget of one step. Unset: the platform decides.", human=True, ge=1)
    ] = None
    max_num_mixed_batched_tokens: Annotated[
        int | None,
        Arg(
            "Prompt tokens of a step that also gives some request a token, so that streams do not wait for long prompts. "
            "Unset: the platform decides, else as many as the budget leaves.",
            human=True,
            ge=1,
        ),
    ] = None
    queued_prompts_weight: Annotated[
        float,
        Arg(
            "While prompts queue up, --max-num-mixed-batched-tokens is larger: times this, times the prompts that wait behind "
            "another one, divided by the streams. 0: never larger.",
            ge=0,
        ),
    ] = 2.0
    max_stall_ms: Annotated[
        float | None,
        Arg(
            "Milliseconds that a running stream may wait for its next token while prompts are computed: their chunks get "
            "the size that fits, by the time that steps have taken so far. Unset: --max-num-mixed-batched-tokens alone "
            "decides.",
            gt=0,
        ),
    ] = None
    enable_chunked_prefill: Annotated[
        bool | None, Arg("Cut long prompts to what is left of a step's budget. Unset: on.")
    ] = None
    long_prefill_token_threshold: Annotated[
        int, Arg("Most prompt tokens of one request in one step; 0: no limit but the budget.", human=True, ge=0)
    ] = 0
    max_num_partial_prefills: Annotated[int, Arg("Most prompts that are computed in part at the same time.", ge=1)] = 1
    max_long_partial_prefills: Annotated[
        int, Arg("Most of them longer than --long-prefill-token-threshold, so that short ones overtake.", ge=1)
    ] = 1
    scheduling_policy: Annotated[
        str,
        Arg(
            "Order of waiting requests: fcfs by arrival, priority by their numbers (lower runs first), fair by turns of "
            "users (API key and `user` field), or a plugin's name.",
            plugin="policy",
        ),
    ] = "fcfs"
    scheduler_reserve_full_isl: Annotated[
        bool, Arg("Admit a request only when the KV cache has room for its whole prompt, not just for the first chunk.")
    ] = True
    async_scheduling: Annotated[
        bool | None,
        Arg(
            "Plan the next step while the current one runs. Unset: on where the processor has nothing else to compute."
        ),
    ] = None
    stream_interval: Annotated[
        int, Arg("Send streamed output every so many tokens; the first one and the last ones at once.", ge=1)
    ] = 1
    max_num_queued_reqs: Annotated[
        int, Arg("Most requests that wait for their first token; more are told to come back (429). 0: no limit.", ge=0)
    ] = 1024
    max_num_queued_tokens: Annotated[
        int, Arg("Most prompt tokens of the requests that wait for their first token. 0: no limit.", human=True, ge=0)
    ] = 8 * 1024 * 1024
    max_num_reqs_per_key: Annotated[
        int,
        Arg(
            "Most requests of one API key that are under way, waiting or running; more are told to come back (429). 0: no "
            "limit but those of all.",
            ge=0,
        ),
    ] = 0
    max_num_queued_reqs_per_key: Annotated[
        int, Arg("Most requests of one API key that wait for their first token. 0: no limit but that of all.", ge=0)
    ] = 0
    max_num_queued_tokens_per_key: Annotated[
        int,
        Arg(
            "Most prompt tokens of the requests of one API key that wait for their first token. 0: no limit but that of all.",
            human=True,
            ge=0,
        ),
    ] = 0
    request_timeout: Annotated[
        float | None, Arg("Seconds after which a request without a timeout of its own is ended. Unset: never.", gt=0)
    ] = None
    disable_hybrid_kv_cache_manager: Annotated[
        bool | None,
        Arg(
            "Give every layer the same amount of KV cache, so that layers with a sliding window keep what they no "
            "longer read. Unset: layers keep what they read, where their blocks are equal in size."
        ),
    ] = None
