"""The state of an engine besides its requests: who halts it, what memory is there, which weights it has.

Owns: `EngineState`, one value that is replaced as a whole, and the change that each event makes of it. Never does: decide
whether an event is allowed (`core_supervision.state_table` does), or store a state. Called by: the state keeper's users.

Everything else about a halt follows from this record: whether steps are planned, whether new requests wait, what clients are
told, and how the next engine begins after a death.
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
"""Owner of a hold that no connection takes with it: a plain pause, or a sleep."""

LOST_WITH_ENGINE: Final = (
    "The weight update that was begun is lost with the engine; start it again (start_weight_update) and send all of it."
)


class Holder(msgspec.Struct, frozen=True):
    """One reason to compute nothing, and its owner.

    reason: `pause` and `sleep` are the operator's and outlive the engine; `wait` belongs to one call of one client.
    since:  seconds since the epoch.
    client: the engine's number of the client; `OPERATOR`. A `pause` that a call waited for names the client still, so that
            the call can take it back when its caller has hung up just then.
    call:   that client's number of the call.
    drains: whether it still waits for requests to end. Until then it halts nothing, and new requests wait.
    """

    reason: HoldReason
    since: float
    client: int = OPERATOR
    call: int = 0
    drains: bool = False


class Gathering(msgspec.Struct, frozen=True):
    """A weight update in several parts that was begun.

    client: that began it, by the engine's number.
    since:  seconds since the epoch.
    lost:   why it can only be started again, as a sentence; empty: it can be finished.
    """

    client: int
    since: float
    lost: str = ""


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """The whole record.

    weights:      sources and version of the weights.
    cache_number: number of the weights that cached keys and values belong to.
    present:      parts of the memory that are there.
    sleep_level:  0 while no sleep was asked for.
    holders:      why nothing is computed, or will be when requests have ended.
    change:       what is being done to memory or weights at this moment.
    gathering:    the update in parts that was begun.
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
        """The row of the table that applies."""
        if self.change is not None or self.cache_number != self.weights.number:
            return "changing"
        if len(self.present) < len(PARTS):
            return "asleep"
        if any(not holder.drains for holder in self.holders):
            return "paused"
        return "draining" if self.holders else "running"

    @property
    def missing(self) -> tuple[MemoryPart, ...]:
        """Parts of the memory that were given back."""
        return tuple(part for part in PARTS if part not in self.present)

    @property
    def is_paused(self) -> bool:
        """Whether a pause was asked for that has not ended, or a call waits for requests to end."""
        return any(holder.reason != "sleep" for holder in self.holders)

    @property
    def drains(self) -> bool:
        """Whether a call waits for requests to end."""
        return any(holder.drains for holder in self.holders)

    @property
    def waiting_clients(self) -> tuple[int, ...]:
        """Clients whose calls halt the engine, by number."""
        return tuple(holder.client for holder in self.holders if holder.reason == "wait")

    def hold(self, client: int, call: int) -> Holder | None:
        """The hold of a waiting call, if it has not ended."""
        for holder in self.holders:
            if holder.reason == "wait" and (holder.client, holder.call) == (client, call):
                return holder
        return None

    def paused(self, now: float) -> EngineState:
        """The operator pauses. A second pause is the same pause, which no call takes back any more."""
        since = min((holder.since for holder in self.holders if holder.reason == "pause"), default=now)
        others = tuple(holder for holder in self.holders if holder.reason != "pause")
        return self._with(holders=(*others, Holder("pause", since)))

    def waited_for(self, client: int, call: int, now: float, *, drains: bool) -> EngineState:
        """A call wants requests to end, and those that come to wait."""
        if self.hold(client, call) is not None:
            return self
        holder = Holder("wait", now, client, call, drains)
        return self._with(holders=(*self.holders, holder))

    def drained(self) -> EngineState:
        """No request runs any more: waiting calls have what they waited for."""
        settled = tuple(msgspec.structs.replace(holder, drains=False) for holder in self.holders)
        return self._with(holders=settled)

    def resumed(self) -> EngineState:
        """All pauses end, those of waiting calls too."""
        return self._with(holders=tuple(holder for holder in self.holders if holder.reason == "sleep"))

    def let_go(self, client: int, call: int | None = None) -> EngineState:
        """A waiting call has ended, and with it the pause that it has made; call=None: a client is gone, whose pauses stay."""
        kept: list[Holder] = []
        for holder in self.holders:
            is_named = holder.client == client and call in (None, holder.call)
            ends = holder.reason == "wait" or (holder.reason == "pause" and call is not None)
            if not (is_named and ends):
                kept.append(holder)
        return self._with(holders=tuple(kept))

    def pause_kept(self, client: int, call: int, now: float) -> EngineState:
        """The pause that a call waited for is the operator's from now on, unless that call lets go of it."""
        after = self.let_go(client, call)
        if any(holder.reason == "pause" for holder in after.holders):
            return after
        return after._with(holders=(*after.holders, Holder("pause", now, client, call)))

    def began(self, change: Change) -> EngineState:
        """Memory or weights are about to be changed."""
        return self._with(change=change)

    def slept(self, level: int, now: float) -> EngineState:
        """All memory was given back."""
        others = tuple(holder for holder in self.holders if holder.reason != "sleep")
        return self._with(change=None, sleep_level=level, present=(), holders=(*others, Holder("sleep", now)))

    def swapped(self, weights: WeightsState, *, ends_gathering: bool) -> EngineState:
        """The models compute with these weights; cached keys and values are still those of the weights before."""
        gathering = None if ends_gathering else self.gathering
        return self._with(weights=weights, gathering=gathering)

    def changed(self, missing: Iterable[MemoryPart]) -> EngineState:
        """A change has ended, well or not: these parts are missing, and the cache has nothing of other weights."""
        absent = frozenset(missing)
        present = tuple(part for part in PARTS if part not in absent)
        if absent:
            return self._with(change=None, present=present, cache_number=self.weights.number)
        awake = tuple(holder for holder in self.holders if holder.reason != "sleep")
        return self._with(change=None, present=present, cache_number=self.weights.number, sleep_level=0, holders=awake)

    def gathered(self, gathering: Gathering | None) -> EngineState:
        """An update in parts was begun, lost or ended."""
        return self._with(gathering=gathering)

    def after_death(self, weights: WeightsState) -> EngineState:
        """The state in which the next engine begins: all memory is there, and the cache is empty.

        Pauses of the operator go on. A sleep is under way again, so that the engine after the next one knows of it, too, should
        the next one die before it sleeps. Waiting calls have ended with the engine.

        weights: that the next engine was started with.
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
        """The operator's sleep, which the engine that follows this one is to go on with."""
        for holder in self.holders:
            if holder.reason == "sleep":
                return holder
        return None

    def _with(self, **fields: Any) -> EngineState:
        return msgspec.structs.replace(self, **fields)
