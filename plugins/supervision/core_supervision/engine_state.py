"""The state of an engine apart from its requests: reasons of a halt, memory that is present, and weights.

Owns: `EngineState`, one value that is replaced as a whole, and the change that each event makes of it. Never does: decide
whether an event is allowed (`core_supervision.state_table` does), or store a state. Called by: the state keeper's users.

Everything else about a halt follows from this record: whether steps are planned, whether new requests wait, what is reported
to clients, and how the next engine begins after a death.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

import msgspec

from core.api.weights import MemoryPart, WeightsState

PARTS: Final[tuple[MemoryPart, ...]] = get_args(MemoryPart)

Phase = Literal["running", "draining", "paused", "asleep", "changing"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
COMPUTING: Final[frozenset[Phase]] = frozenset({"running", "draining"})
"""Phases in which steps are planned."""

Change = Literal["sleep", "wake", "update"]
HoldReason = Literal["pause", "wait", "sleep"]

OPERATOR: Final = -1
"""Owner of a hold that does not end with a connection: a plain pause, or a sleep."""

LOST_WITH_ENGINE: Final = (
    "The weight update that was begun is lost with the engine; start it again (start_weight_update) and send all of it."
)


class Holder(msgspec.Struct, frozen=True):
    """One reason not to compute, and its owner.

    reason: `pause` and `sleep` are the operator's and outlive the engine; `wait` belongs to one call of one client.
    since:  seconds since the epoch.
    client: number of the client, or `OPERATOR`. A `pause` that a call waited for still names the client, so that the call
            can withdraw it when its caller hung up at that moment.
    call:   the client's number of the call.
    drains: whether it still waits for requests to end. Until then it halts nothing, and new requests wait.
    """

    reason: HoldReason
    since: float
    client: int = OPERATOR
    call: int = 0
    drains: bool = False


class Gathering(msgspec.Struct, frozen=True):
    """A weight update in several parts that has begun.

    client: number of the client that began it.
    since:  seconds since the epoch.
    lost:   why it can only be started again, as a sentence; empty when it can be finished.
    """

    client: int
    since: float
    lost: str = ""


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """The whole record of one engine, owned by the state keeper.

    weights:      sources and version of the weights.
    cache_number: number of the weights to which cached keys and values belong.
    present:      parts of the memory that are present.
    sleep_level:  level of the sleep; 0 for none.
    holders:      reasons of a halt, also of one that begins when requests have ended.
    change:       change of memory or weights in progress.
    gathering:    the update in parts that has begun.
    """

    weights: WeightsState = WeightsState()
    cache_number: int = 0
    present: tuple[MemoryPart, ...] = PARTS
    sleep_level: int = 0
    holders: tuple[Holder, ...] = ()
    change: Change | None = None
    gathering: Gathering | None = None

    @property
    def phase(self) -> Phase:
        """The phase, which selects the column of the table that applies."""
        # A cache of other weights counts as a change in progress: nothing may be computed with it.
        if self.change is not None or self.cache_number != self.weights.number:
            return "changing"
        if len(self.present) < len(PARTS):
            return "asleep"
        if any(not holder.drains for holder in self.holders):
            return "paused"
        return "draining" if self.holders else "running"

    @property
    def missing(self) -> tuple[MemoryPart, ...]:
        """Parts of the memory that are released."""
        return tuple(part for part in PARTS if part not in self.present)

    @property
    def is_paused(self) -> bool:
        """Whether a pause has not ended, or a call waits for requests to end."""
        return any(holder.reason != "sleep" for holder in self.holders)

    @property
    def drains(self) -> bool:
        """Whether a call waits for requests to end."""
        return any(holder.drains for holder in self.holders)

    @property
    def waiting_clients(self) -> tuple[int, ...]:
        """Numbers of the clients whose calls halt the engine."""
        return tuple(holder.client for holder in self.holders if holder.reason == "wait")

    def hold(self, client: int, call: int) -> Holder | None:
        """Return the hold of a waiting call, or None when it has ended."""
        for holder in self.holders:
            if holder.reason == "wait" and (holder.client, holder.call) == (client, call):
                return holder
        return None

    def paused(self, now: float) -> EngineState:
        """Return the state after a pause of the operator. A second pause is the same one, and no call withdraws it any more."""
        since = min((holder.since for holder in self.holders if holder.reason == "pause"), default=now)
        others = tuple(holder for holder in self.holders if holder.reason != "pause")
        return self._with(holders=(*others, Holder("pause", since)))

    def waited_for(self, client: int, call: int, now: float, *, drains: bool) -> EngineState:
        """Return the state after a call begins to wait for requests to end, while new ones wait."""
        if self.hold(client, call) is not None:
            return self
        holder = Holder("wait", now, client, call, drains)
        return self._with(holders=(*self.holders, holder))

    def drained(self) -> EngineState:
        """Return the state after the last request has ended: waiting calls hold the engine from now on."""
        settled = tuple(msgspec.structs.replace(holder, drains=False) for holder in self.holders)
        return self._with(holders=settled)

    def resumed(self) -> EngineState:
        """Return the state after all pauses have ended, including those of waiting calls."""
        return self._with(holders=tuple(holder for holder in self.holders if holder.reason == "sleep"))

    def let_go(self, client: int, call: int | None = None) -> EngineState:
        """Return the state after a waiting call has ended, and with it the pause that it made.

        call: None: the client is gone; its calls end, its pauses stay.
        """
        kept: list[Holder] = []
        for holder in self.holders:
            is_named = holder.client == client and call in (None, holder.call)
            ends = holder.reason == "wait" or (holder.reason == "pause" and call is not None)
            if not (is_named and ends):
                kept.append(holder)
        return self._with(holders=tuple(kept))

    def pause_kept(self, client: int, call: int, now: float) -> EngineState:
        """Return the state after the pause that a call waited for has become the operator's, until that call withdraws it."""
        after = self.let_go(client, call)
        if any(holder.reason == "pause" for holder in after.holders):
            return after
        return after._with(holders=(*after.holders, Holder("pause", now, client, call)))

    def began(self, change: Change) -> EngineState:
        """Return the state before a change of memory or weights."""
        return self._with(change=change)

    def slept(self, level: int, now: float) -> EngineState:
        """Return the state after all memory was released for a sleep."""
        others = tuple(holder for holder in self.holders if holder.reason != "sleep")
        return self._with(change=None, sleep_level=level, present=(), holders=(*others, Holder("sleep", now)))

    def swapped(self, weights: WeightsState, *, ends_gathering: bool) -> EngineState:
        """Return the state after the models got new weights; cached keys and values are still those of the old ones."""
        gathering = None if ends_gathering else self.gathering
        return self._with(weights=weights, gathering=gathering)

    def changed(self, missing: Iterable[MemoryPart]) -> EngineState:
        """Return the state after a change, successful or not: `missing` parts are released; the cache fits the weights."""
        absent = frozenset(missing)
        present = tuple(part for part in PARTS if part not in absent)
        if absent:
            return self._with(change=None, present=present, cache_number=self.weights.number)
        awake = tuple(holder for holder in self.holders if holder.reason != "sleep")
        return self._with(change=None, present=present, cache_number=self.weights.number, sleep_level=0, holders=awake)

    def gathered(self, gathering: Gathering | None) -> EngineState:
        """Return the state after an update in parts has begun, was lost or has ended."""
        return self._with(gathering=gathering)

    def after_death(self, weights: WeightsState) -> EngineState:
        """Return the state in which the next engine begins: all memory is present, and the cache is empty.

        Pauses of the operator continue. A sleep is in progress again, so that a further engine also learns of it if the next
        one dies before it sleeps. Waiting calls have ended with the engine.

        weights: weights with which the next engine was started.
        """
        lasting = tuple(Holder(holder.reason, holder.since) for holder in self.holders if holder.reason != "wait")
        gathering = self.gathering
        if gathering is not None and not gathering.lost:
            gathering = msgspec.structs.replace(gathering, lost=LOST_WITH_ENGINE)
        sleeps = self.sleeper is not None
        return EngineState(
            weights=weights,
            cache_number=weights.number,
            sleep_level=self.sleep_level if sleeps else 0,
            holders=lasting,
            change="sleep" if sleeps else None,
            gathering=gathering,
        )

    @property
    def sleeper(self) -> Holder | None:
        """The operator's sleep, which the next engine has to continue; None for none."""
        for holder in self.holders:
            if holder.reason == "sleep":
                return holder
        return None

    def _with(self, **fields: Any) -> EngineState:
        return msgspec.structs.replace(self, **fields)
