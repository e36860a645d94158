"""Arguments about limits of clients, connections and requests. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


class LimitsArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Limits of connections and requests."""

    place: ClassVar[int] = 160
    for_servers: ClassVar[bool] = True

    max_connections: Annotated[
        int,
        Arg("Most open connections; for one more, the one that has been silent longest is closed.", human=True, ge=1),
    ] = 2048
    max_header_size: Annotated[int, Arg("Most bytes of a request's line and headers.", human=True, ge=1024)] = 64 * 1024
    max_body_size: Annotated[int, Arg("Most bytes of a request's body.", human=True, ge=1024)] = 32 * 1024 * 1024
    request_read_timeout: Annotated[
        float, Arg("Seconds from the first byte of a request within which all of it must have come.", gt=0)
    ] = 60.0
    keep_alive_timeout: Annotated[
        float, Arg("Seconds that a client may be silent between requests, or take nothing of its answer.", gt=0)
    ] = 30.0
    max_messages: Annotated[int, Arg("Most messages of one conversation.", human=True, ge=1)] = 8192
    max_tools: Annotated[int, Arg("Most tools of one request.", human=True, ge=1)] = 1024
    max_tools_size: Annotated[int, Arg("Most bytes of a request's tools, as JSON.", human=True, ge=1024)] = (
        4 * 1024 * 1024
    )
    max_list_length: Annotated[
        int,
        Arg("Most entries of each list in a request: stop strings, stop tokens, bad words, biases.", human=True, ge=1),
    ] = 1024
    max_request_tokens: Annotated[
        int,
        Arg(
            "Most tokens and log probabilities that one HTTP request may ask for, in all its prompts and choices together.",
            human=True,
            ge=1,
        ),
    ] = 4 * 1024 * 1024
    max_stored_responses: Annotated[
        int, Arg("Most responses of /v1/responses that are kept in memory; 0 keeps none.", human=True, ge=0)
    ] = 4096
    max_stored_response_bytes: Annotated[
        int, Arg("Most bytes that kept responses take together; for more, the longest unused go.", human=True, ge=0)
    ] = 256 * 1024 * 1024
    stored_response_lifetime: Annotated[
        float, Arg("Seconds that a kept response is not used before it goes.", gt=0)
    ] = 24 * 3600.0
    max_sessions_per_key: Annotated[
        int, Arg("Most sessions (field session) of one API key; 0 keeps none.", human=True, ge=0)
    ] = 64
    shared_limits: Annotated[
        str | None,
        Arg(
            "Directory in which several servers of this machine count the requests, waiting tokens, sessions and files of each "
            "API key together, so that the limits per key hold for all of them. `core serve` of several models has one.",
            metavar="DIR",
            since="0.2.0",
        ),
    ] = None
    kv_session_lifetime: Annotated[float, Arg("Seconds that a session is not used before it goes.", gt=0)] = 3600.0
    kv_session_share: Annotated[
        float,
        Arg(
            "Fraction of the KV cache, of host memory and of the disk that pinned sessions may hold, of all API keys.",
            ge=0,
            le=1,
        ),
    ] = 0.5
