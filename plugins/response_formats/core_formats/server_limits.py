"""Resource limits per client, connection and request.

Owns: `ServerLimits`. Never does: enforce one. Called by: `ServerConfig` (carries it), decoders of requests (refuse by
it).
"""

from __future__ import annotations

import msgspec


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits per client, connection and request.

    max_connections: open at the same time.
    max_header_size: bytes of a request's line and headers.
    max_body_size: bytes.
    request_read_timeout: seconds from a request's first byte to its last.
    keep_alive_timeout: seconds that a connection may be silent between requests.
    max_messages: of one conversation.
    max_tools: of one request.
    max_tools_size: bytes of their definitions, as JSON.
    max_list_length: entries of each list of a request.
    max_request_tokens: output tokens that all choices of one HTTP request may ask for together.
    max_stored_responses: of /v1/responses, kept in memory.
    max_stored_response_bytes: that these take together.
    stored_response_lifetime: seconds that one of them is not used before it goes.
    max_sessions_per_key: sessions of one API key; 0: the server keeps none.
    shared_limits: directory in which servers count the requests, sessions and files of each API key together.
    kv_session_lifetime: seconds that a session is not used before it goes.
    kv_session_share: fraction of the KV cache, and of other places, that pinned sessions may hold.
    """

    max_connections: int = 2048
    max_header_size: int = 64 * 1024
    max_body_size: int = 32 * 1024 * 1024
    request_read_timeout: float = 60.0
    keep_alive_timeout: float = 30.0
    max_messages: int = 8192
    max_tools: int = 1024
    max_tools_size: int = 4 * 1024 * 1024
    max_list_length: int = 1024
    max_request_tokens: int = 4 * 1024 * 1024
    max_stored_responses: int = 4096
    max_stored_response_bytes: int = 256 * 1024 * 1024
    stored_response_lifetime: float = 24 * 3600.0
    max_sessions_per_key: int = 64
    shared_limits: str | None = None
    kv_session_lifetime: float = 3600.0
    kv_session_share: float = 0.5
