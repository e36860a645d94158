"""What clients and operators are told of the models of a server.

Owns: the answers of `/v1/models`, `/health` and the like. Never does: change anything. Called by:
`core_commands.several.application`.
"""

from __future__ import annotations

import msgspec

from core_commands.several.entries import ModelEntry
from core_commands.several.turns import Seat, Turns


class SeveralCard(msgspec.Struct, kw_only=True):
    """A name of a model.

    state: as of `core_commands.several.turns.State`. bytes: what it takes now; awake_bytes: what it takes awake.
    running, waiting: requests. cause: why it failed last. parent: of an adapter, its model.
    """

    id: str
    object: str = "model"
    created: int
    owned_by: str = "core"
    root: str
    max_model_len: int
    parent: str | None = None
    state: str
    bytes: int
    awake_bytes: int
    running: int
    waiting: int
    pinned: bool
    cause: str | msgspec.UnsetType = msgspec.UNSET


class SeveralList(msgspec.Struct):
    """All names, and the budget in bytes."""

    data: list[SeveralCard]
    budget_bytes: int
    used_bytes: int
    object: str = "list"


class SeveralHealth(msgspec.Struct):
    """The state of each model."""

    status: str
    models: dict[str, str]


def card(entry: ModelEntry, seat: Seat, name: str, created: int) -> SeveralCard:
    """Return the card of one of a model's names. created: seconds since the epoch."""
    return SeveralCard(
        id=name,
        created=created,
        root=entry.name,
        max_model_len=entry.max_model_len,
        parent=entry.name if name in entry.adapters else None,
        state=seat.state,
        bytes=seat.bytes,
        awake_bytes=seat.awake_bytes,
        running=seat.running,
        waiting=len(seat.waiting),
        pinned=seat.pinned,
        cause=seat.cause or msgspec.UNSET,
    )


def health(turns: Turns) -> SeveralHealth:
    """Return the health of a server: `ok` while any of its models can answer."""
    states = {seat.name: "failed" if seat.cause else seat.state for seat in turns.seats.values()}
    failed = all(state == "failed" for state in states.values())
    return SeveralHealth("failed" if failed else "ok", states)
