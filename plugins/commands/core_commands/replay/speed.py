"""Speed and memory of two sides that take turns on the same requests.

Owns: `Turn`, `Speed`, the order of the turns, and the ratios that follow from them. Never does: send a request (a `Side` does).
Called by: `replay.side_by_side`; made-up sides stand in for servers in tests.

Sides answer in the order left, right, right, left, so that a machine that becomes slower or faster at an even rate favours
none. Each pair of turns gives one ratio; the interval is that of their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import fmean, median
from typing import Any, Final, Literal, Protocol

from core_commands.tune.effects import Effect, Pair

Name = Literal["left", "right"]
NAMES: Final[tuple[Name, Name]] = ("left", "right")
LONGEST_TURN: Final = 8
"""Most requests of one turn. Short turns follow a machine whose speed wanders; one request says little of throughput."""
LEAST_TURNS: Final = 8
"""Turns into which few requests are divided, since an interval needs pairs."""
ENOUGH_PAIRS: Final = 16
"""Pairs after which requests are not sent once more."""
LEAST_PAIRS: Final = 2
"""Pairs without which there is no interval, whatever they take."""
NO_LEFT: Final = "the left side is what was recorded; give its engine: --left ARGUMENTS"


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side took for some requests.

    seconds: from the first request to the end of the last answer. tokens: of all answers.
    firsts: seconds to the first token, by the place of the request. problems: why requests failed; empty: none did.
    """

    seconds: float
    tokens: int
    firsts: dict[int, float]
    problems: list[str] = field(default_factory=list)


class Side(Protocol):
    """A server that answers requests, which it knows by their places."""

    async def answer(self, places: Sequence[int]) -> Turn:
        """Answer these requests. Raises CoreError if the server cannot be reached at all."""
        ...

    async def forget(self) -> bool:
        """Have the server forget its cached prefixes; returns whether it could."""
        ...

    def peak_bytes(self) -> int | None:
        """Return the most memory that the server has had resident; None: it is not known."""
        ...


@dataclass
class Speed:
    """The comparison of two sides.

    reason: why speed was not measured; empty: it was.
    rates: tokens a second of each side. firsts: median seconds to the first token of each side.
    rate, first: the right side's through the left one's.
    peaks: resident bytes of each side's processes at most, where they are known.
    num_failed: requests that a side did not answer; the pairs that they belong to do not count. problem: of the first one.
    has_warm: whether prefixes were cached from earlier rounds, since a server could not forget them.
    """

    reason: str = NO_LEFT
    rates: dict[Name, float] = field(default_factory=dict)
    firsts: dict[Name, float] = field(default_factory=dict)
    rate: Effect | None = None
    first: Effect | None = None
    peaks: dict[Name, int] = field(default_factory=dict)
    num_failed: int = 0
    problem: str = ""
    has_warm: bool = False

    def lines(self) -> list[tuple[str, str]]:
        """Return (name, value) of each row of a report."""
        if self.reason and not self.peaks:
            return [("speed and memory", f"not measured: {self.reason}")]
        rows: list[tuple[str, str]] = []
        if self.rate is None or self.first is None:
            rows.append(("speed", f"not measured: {self.reason}"))
        else:
            rates = ", ".join(f"{name} {self.rates[name]:,.1f}" for name in NAMES)
            firsts = ", ".join(f"{name} {1000 * self.firsts[name]:,.1f} ms" for name in NAMES)
            rows += [
                ("tokens a second", f"{rates}; right beside left {self.rate.text()}"),
                ("time to the first token", f"{firsts}; right beside left {self.first.text()}"),
            ]
        if self.has_warm:
            rows.append(("prefixes", "cached from the second round on, since a server could not forget them"))
        if self.num_failed:
            rows.append(("requests that failed meanwhile", f"{self.num_failed}, the first one: {self.problem}"))
        rows += [(f"peak resident memory on the {name}", self._peak(name)) for name in NAMES]
        return rows

    def plain(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        return {
            "reason": self.reason,
            "tokens_per_second": _plain(self.rates, self.rate),
            "first_token_seconds": _plain(self.firsts, self.first),
            "peak_resident_bytes": {name: self.peaks.get(name) for name in NAMES},
            "failed": self.num_failed,
            "problem": self.problem,
            "cached_prefixes": self.has_warm,
        }

    def _peak(self, name: Name) -> str:
        size = self.peaks.get(name)
        if size is not None:
            return f"{size / 2**20:,.0f} MiB"
        return "not measured: the server was not started by this command, or the system tells no peaks"


async def take_turns(left: Side, right: Side, count: int, seconds: float, clock: Callable[[], float]) -> Speed:
    """Measure two sides on `count` requests.

    seconds: after which no further pair begins, once there are `LEAST_PAIRS`. clock: returns seconds.
    Raises CoreError if a server cannot be reached.
    """
    sides: dict[Name, Side] = {"left": left, "right": right}
    size = max(1, min(LONGEST_TURN, count // LEAST_TURNS))
    turns = [range(start, min(start + size, count)) for start in range(0, count, size)]
    pairs = _Pairs()
    for name in NAMES:  # in vain: first requests pay for pages and caches that they touch first
        await sides[name].answer(turns[-1])
    begin = clock()
    is_over = False
    while not is_over:
        # The right side first: it may be a server that cannot, and then the left one keeps its prefixes too.
        forgets = await right.forget() and await left.forget()
        pairs.speed.has_warm = pairs.speed.has_warm or (pairs.num_tried > 0 and not forgets)
        for places in turns:
            order = NAMES if pairs.num_tried % 2 == 0 else NAMES[::-1]
            pairs.add({name: await sides[name].answer(places) for name in order})
            is_over = pairs.num_tried >= LEAST_PAIRS and clock() - begin >= seconds
            if is_over:
                break
        is_over = is_over or pairs.num_tried >= ENOUGH_PAIRS
    for name in NAMES:
        peak = sides[name].peak_bytes()
        if peak is not None:
            pairs.speed.peaks[name] = peak
    return pairs.finished()


class _Pairs:
    """The pairs of turns so far. num_tried: with those that do not count."""

    def __init__(self) -> None:
        self.num_tried = 0
        self.speed = Speed(reason="")
        self._rates: list[Pair] = []
        self._firsts: list[Pair] = []
        self._tokens = dict.fromkeys(NAMES, 0)
        self._seconds = dict.fromkeys(NAMES, 0.0)
        self._all: dict[Name, list[float]] = {name: [] for name in NAMES}

    def add(self, turns: dict[Name, Turn]) -> None:
        """Add the turns of both sides on the same requests."""
        self.num_tried += 1
        problems = [problem for name in NAMES for problem in turns[name].problems]
        if problems:  # an answer that is missing would make its side look quicker
            self.speed.num_failed += len(problems)
            self.speed.problem = self.speed.problem or problems[0]
            return
        if not all(turn.tokens and turn.seconds > 0 for turn in turns.values()):
            return
        left, right = (turns[name] for name in NAMES)
        self._rates.append(Pair(left.tokens / left.seconds, right.tokens / right.seconds))
        self._firsts.append(Pair(_mean(left), _mean(right)))
        for name, turn in turns.items():
            self._tokens[name] += turn.tokens
            self._seconds[name] += turn.seconds
            self._all[name] += turn.firsts.values()

    def finished(self) -> Speed:
        """Return the outcome."""
        speed = self.speed
        if not self._rates:
            speed.reason = f"all pairs failed: {speed.problem}" if speed.problem else "no answer has a token"
            return speed
        speed.rate, speed.first = Effect.of(self._rates), Effect.of(self._firsts)
        speed.rates = {name: self._tokens[name] / self._seconds[name] for name in NAMES}
        speed.firsts = {name: median(self._all[name]) for name in NAMES}
        return speed


def _mean(turn: Turn) -> float:
    """Return the geometric mean of the times to first tokens: the mean ratio of a turn is the ratio of these."""
    return exp(fmean(log(max(seconds, 1e-6)) for seconds in turn.firsts.values()))


def _plain(values: dict[Name, float], effect: Effect | None) -> dict[str, Any] | None:
    if effect is None:
        return None
    ratios = {"ratio": exp(effect.mean), "low": exp(effect.mean - effect.half), "high": exp(effect.mean + effect.half)}
    return {**{str(name): value for name, value in values.items()}, **ratios, "pairs": effect.num_pairs}
