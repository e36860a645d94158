"""Bodies and answers of /v1/sessions.

Owns: their Structs. Called by: their routes, the OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from core_apis.protocol.sampling import SessionName


class TurnAnswer(msgspec.Struct):
    """One turn. kept_tokens: tokens at its start that are those of an earlier turn, unchanged."""

    prompt_tokens: int
    answer_tokens: int
    kept_tokens: int


class SessionAnswer(msgspec.Struct):
    """A session.

    id:      its name.
    created: seconds since the epoch.
    unused:  seconds since its last use.
    running: number of requests under way.
    tokens:  of its last turn, prompt and answer.
    bytes:   memory of its turns.
    pinned:  whether its keys and values are pinned.
    kv_bytes: of its keys and values by place: `pool`, and those of KV connectors, such as `host` and `disk`; a block may be in
        several. null in lists, and while the engine does not answer.
    pinned_bytes: what the pin holds in the pool; null as above.
    held_bytes: what it holds with a KV connector, pages that are still to come included; null as above.
    """

    id: str
    created: int
    unused: float
    running: int
    tokens: int
    bytes: int
    turns: list[TurnAnswer]
    pinned: bool = False
    kv_bytes: dict[str, int] | None = None
    pinned_bytes: int | None = None
    held_bytes: int | None = None
    object: str = "session"


class SessionList(msgspec.Struct):
    """All sessions of a key, the one used last at the end."""

    data: list[SessionAnswer]
    object: str = "list"


class DeletedSession(msgspec.Struct):
    """The answer to DELETE."""

    id: str
    deleted: bool = True
    object: str = "session"


class ForkRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a fork. name: of the new session."""

    name: SessionName


class PinRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a pin, which may be left out: there is nothing to choose."""


class RewindRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a rewind. turn: number of turns that stay."""

    turn: Annotated[int, msgspec.Meta(description="the number of turns that stay, a whole number from 0")]
