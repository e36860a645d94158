"""Whose turn it is: which model is woken, which gives its memory back, and which requests wait meanwhile.

Owns: the state of each model, the budget, the queues. Never does: wait, start or ask anything; it is told what happened and
says what to do next. Called by: `core_commands.several.keeper`, and tests with a clock of their own.

A model in use is never put to sleep. One that keeps others waiting for longer than its turn takes no new requests, so that
it is in use no longer once those that run have ended. So whoever waits for a model waits for the models whose requests came
before, and for each at most: its turn, what still runs then, and a change of models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

State = Literal["absent", "starting", "waking", "awake", "closing", "falling asleep", "asleep"]
"""absent: it has no process. closing: awake, but new requests wait until others had their turn."""

IN_MEMORY: tuple[State, ...] = ("starting", "waking", "awake", "closing", "falling asleep")
CHANGING: tuple[State, ...] = ("starting", "waking", "falling asleep")
PAYS_FROM = 4.0
"""A turn lasts at least this many times as long as a change of models, so that changes take at most a fifth of the time."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for a model. arrived: seconds of the clock. admit: called when it may be sent on."""

    arrived: float
    admit: Callable[[], None]


@dataclass(slots=True, eq=False)
class Seat:
    """A model's place in the budget.

    awake_bytes, asleep_bytes: what it takes in these states.
    running: requests that were sent on and have no whole answer yet.
    keep_until: time until which it stays awake without requests; None: until another model needs the memory.
    gives_way: whether it is to fall asleep as soon as nothing uses it.
    change_s: seconds that its last waking and falling asleep took together.
    not_before: time before which it is not started again after a failure. cause: of that failure.
    """

    name: str
    awake_bytes: int
    asleep_bytes: int = 0
    pinned: bool = False
    idle_timeout: float | None = None
    state: State = "absent"
    running: int = 0
    waiting: deque[Waiter] = field(default_factory=deque)
    awake_since: float = 0.0
    last_used: float = 0.0
    keep_until: float | None = None
    gives_way: bool = False
    change_s: float = 0.0
    not_before: float = 0.0
    cause: str = ""

    @property
    def bytes(self) -> int:
        """Return what it takes now."""
        if self.state in IN_MEMORY:
            return self.awake_bytes
        return self.asleep_bytes if self.state == "asleep" else 0


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be done next with a model."""

    kind: Literal["wake", "sleep"]
    seat: Seat


class Turns:
    """The models of a server. budget: bytes of all together. turn: seconds. clock: seconds."""

    def __init__(self, seats: Iterable[Seat], budget: int, turn: float, clock: Callable[[], float]) -> None:
        self.seats = {seat.name: seat for seat in seats}
        self.budget = budget
        self._turn = turn
        self._clock = clock

    @property
    def used(self) -> int:
        """Return the bytes that all models take now."""
        return sum(seat.bytes for seat in self.seats.values())

    def enter(self, seat: Seat, admit: Callable[[], None]) -> Waiter:
        """Queue a request; `admit` is called at once if the model takes requests."""
        waiter = Waiter(self._clock(), admit)
        seat.waiting.append(waiter)
        self._admit(seat)
        return waiter

    def leave(self, seat: Seat, keep_alive: float | None = None) -> None:
        """Note that a request has its answer. keep_alive: seconds for which the model stays awake after it, if it says so;
        below 0: without end.
        """
        seat.running -= 1
        now = seat.last_used = self._clock()
        stay = seat.idle_timeout if keep_alive is None else keep_alive
        stay = 0.0 if seat.gives_way else stay
        seat.keep_until = None if stay is None or stay < 0 else now + stay

    def give_up(self, seat: Seat, waiter: Waiter) -> None:
        """Forget a request that waits no longer."""
        if waiter in seat.waiting:
            seat.waiting.remove(waiter)

    def give_way(self, seat: Seat) -> None:
        """Have a model fall asleep as soon as nothing uses it."""
        seat.gives_way = True
        seat.keep_until = self._clock()

    def settle(self, seat: Seat, state: State) -> None:
        """Note that a model has come to a state."""
        seat.state = state
        if state in ("absent", "asleep"):
            seat.gives_way = False
        if state == "awake":
            seat.awake_since = seat.last_used = self._clock()
            seat.keep_until = None if seat.idle_timeout is None else self._clock() + seat.idle_timeout
            self._admit(seat)

    def decide(self) -> Change | None:
        """Return the next change; None while one is under way, or nothing is to be done."""
        if any(seat.state in CHANGING for seat in self.seats.values()):
            return None
        wanted = self._wanted()
        if wanted is None:
            self._reopen(self.seats.values())
            return self._idle_too_long()
        missing = self.used + wanted.awake_bytes - wanted.bytes - self.budget
        if missing <= 0:
            return Change("wake", wanted)
        victims = self._idle()
        if _freed(victims) >= missing:
            return Change("sleep", victims[0])
        self._close(victims, missing, wanted)
        return self._idle_too_long()

    def next_time(self) -> float | None:
        """Return when to decide again, if nothing happens before."""
        times = [seat.keep_until for seat in self._idle() if seat.keep_until is not None]
        times += [seat.not_before for seat in self.seats.values() if seat.waiting and seat.not_before > self._clock()]
        wanted = self._wanted()
        if wanted is not None:
            active = [
                seat for seat in self.seats.values() if seat.state == "awake" and seat.running and not seat.pinned
            ]
            times += [seat.awake_since + self.turn_of(seat, wanted) for seat in active]
        return min(times, default=None)

    def turn_of(self, seat: Seat, wanted: Seat) -> float:
        """Return for how long `seat` may keep `wanted` waiting."""
        return max(self._turn, PAYS_FROM * (seat.change_s + wanted.change_s))

    def _wanted(self) -> Seat | None:
        """Return the model that is not awake whose oldest request has waited longest."""
        now = self._clock()
        out = [
            seat
            for seat in self.seats.values()
            if seat.waiting and seat.state in ("absent", "asleep") and seat.not_before <= now
        ]
        return min(out, key=lambda seat: seat.waiting[0].arrived, default=None)

    def _idle(self) -> list[Seat]:
        """Return the models whose memory can be had now: those that had their turn first, then by their last use."""
        free = [
            seat
            for seat in self.seats.values()
            if seat.state in ("awake", "closing") and not seat.running and not seat.pinned
        ]
        return sorted(free, key=lambda seat: (seat.state != "closing", seat.last_used))

    def _close(self, idle: list[Seat], missing: int, wanted: Seat) -> None:
        """Let models whose turn is over take no new requests, as many as have to give their memory."""
        now = self._clock()
        closing = [seat for seat in self.seats.values() if seat.state == "closing" and seat.running]
        freed = _freed([*idle, *closing])
        active = [seat for seat in self.seats.values() if seat.state == "awake" and seat.running and not seat.pinned]
        for seat in sorted(active, key=lambda seat: seat.awake_since):
            if freed >= missing:
                return
            if now - seat.awake_since >= self.turn_of(seat, wanted):
                seat.state = "closing"
                freed += seat.awake_bytes - seat.asleep_bytes

    def _reopen(self, seats: Iterable[Seat]) -> None:
        """Let models take requests again for whose memory nobody waits any more."""
        for seat in seats:
            if seat.state == "closing":
                seat.state = "awake"
                self._admit(seat)

    def _idle_too_long(self) -> Change | None:
        now = self._clock()
        for seat in self._idle():
            if seat.keep_until is not None and seat.keep_until <= now:
                return Change("sleep", seat)
        return None

    def _admit(self, seat: Seat) -> None:
        """Let all that wait for a model through, if it takes requests."""
        while seat.state == "awake" and seat.waiting:
            waiter = seat.waiting.popleft()
            seat.running += 1
            waiter.admit()


def _freed(seats: Iterable[Seat]) -> int:
    """Return the bytes that models give back when they fall asleep."""
    return sum(seat.awake_bytes - seat.asleep_bytes for seat in seats)
