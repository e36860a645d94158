"""The order of trials: pairs of measurements with a value and without, until the time is used or the answer is clear.

Owns: the budget of time, the ABBA order, the choice of what helps. Never does: start a server or measure (a `Workbench`
does). Called by: `core tune`; a simulated workbench stands in for servers in tests.

The present configuration stays open. A value's server is opened beside it and both are measured in the order A B B A, so that
a machine that becomes slower or faster at an even rate favours neither. What helps by itself is then tried together, with new
pairs, because the best of many noisy figures looks better than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from core.api.errors import CoreError, UserError
from core_commands.tune.candidates import Candidate, Dropped
from core_commands.tune.effects import Effect, Pair

LEAST_BLOCKS: Final = 2
"""Blocks of A B B A of each value, if the time allows: four pairs, below which an interval says little."""
MOST_BLOCKS: Final = 8
CLEAR: Final = 0.25
"""Half the width of an interval, as a share of the effect, at which an effect is clear enough."""


class TrialError(CoreError):
    """Raised when a server does not start, or does not answer; the message says why."""


class Subject(Protocol):
    """A configuration that can be measured."""

    def measure(self, seed: int) -> float:
        """Return the score of one load; equal seeds send equal prompts. Raises TrialError."""
        ...


class Workbench(Protocol):
    """Where configurations are measured."""

    def opened(self, values: Mapping[str, Any]) -> AbstractContextManager[Subject]:
        """Open a configuration: the present one with further values. Raises TrialError if it does not start."""
        ...

    def calibrate(self, subject: Subject, seconds: float, candidates: Sequence[Candidate]) -> Sequence[Dropped]:
        """Make a measurement take about so many seconds; return the values that cannot help at the speed that is seen."""
        ...

    def compare(self, present: Subject, trial: Subject) -> str:
        """Return how the answers of two configurations differ, as a sentence."""
        ...

    def bandwidth(self) -> float:
        """Return the memory's bandwidth in GB/s."""
        ...

    def now(self) -> float:
        """Return a clock's seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Tried:
    """A value that was measured. difference: how answers differ, where their bits do."""

    candidate: Candidate
    effect: Effect
    difference: str = ""


@dataclass
class Findings:
    """The outcome of all trials.

    chosen: the values that help, together by `together`. note: why values that help alone are not chosen.
    untried: values for which there was no time. seconds: of everything. bandwidths: GB/s, as they were seen.
    """

    tried: list[Tried] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    untried: list[Candidate] = field(default_factory=list)
    chosen: list[Tried] = field(default_factory=list)
    together: Effect | None = None
    note: str = ""
    seconds: float = 0.0
    bandwidths: list[float] = field(default_factory=list)

    def ranking(self, *, changes_bits: bool = False) -> list[Tried]:
        """Return what was measured, the best first: values that keep every bit, or those that do not."""
        rows = [row for row in self.tried if row.candidate.changes_bits is changes_bits]
        return sorted(rows, key=lambda row: -row.effect.mean)


@dataclass(frozen=True, slots=True)
class Terms:
    """What bounds the trials. seconds: of all. least: logarithm of a ratio below which an effect is not worth an argument."""

    seconds: float
    least: float = 0.01
    allow_other_bits: bool = False
    say: Callable[[str], object] = lambda text: None


class Trials:
    """One run over all candidates."""

    def __init__(self, bench: Workbench, candidates: Sequence[Candidate], terms: Terms) -> None:
        self._bench = bench
        self._candidates = list(candidates)
        self._terms = terms
        self._begin = bench.now()
        self._open_s = 0.0
        self._measure_s = 0.0
        self._seed = 0
        self._present: Subject | None = None
        self.findings = Findings()

    def run(self) -> Findings:
        """Try everything that the time allows. Raises TrialError if the present configuration does not start or answer,
        UserError if the time is too short for one value.
        """
        found = self.findings
        with self._bench.opened({}) as present:
            self._present = present
            self._open_s = self._passed()
            self._start(present)  # leaves out values, so it comes first
            kept = [each for each in self._candidates if not each.changes_bits]
            others = [each for each in self._candidates if each.changes_bits]
            early = [*kept, *others] if self._terms.allow_other_bits else kept
            late = [] if self._terms.allow_other_bits else others
            self._try_all(present, early, reserve=True)
            self._choose(present)
            self._try_all(present, late, reserve=False)
        found.seconds = self._passed()
        return found

    def _start(self, present: Subject) -> None:
        """Size a measurement, and check that there is time for a pair."""
        count = len(self._candidates)
        room = self._terms.seconds - self._passed() - (count + 1) * self._open_s
        target = min(max(room / ((count + 1) * 4 * LEAST_BLOCKS + count + 2), 1.0), 15.0)
        slow = {dropped.text: dropped for dropped in self._bench.calibrate(present, target, self._candidates)}
        self.findings.dropped += slow.values()
        self._candidates = [each for each in self._candidates if each.text not in slow]
        self._measured(present, self._seed)
        self._terms.say(f"a start takes {self._open_s:.1f} s, a measurement {self._measure_s:.1f} s")
        needed = 2 * self._cost()  # of one value, and once more if it helps
        if self._candidates and self._left() < needed:
            minutes = (self._passed() + needed) / 60
            raise UserError(
                f"--minutes {self._terms.seconds / 60:g}: a start takes {self._open_s:.0f} s and one measurement "
                f"{self._measure_s:.1f} s, so there is no time to try one value and confirm it; give at least {minutes:.1f}."
            )

    def _try_all(self, present: Subject, candidates: Sequence[Candidate], *, reserve: bool) -> None:
        """Try values one after the other. reserve: whether time is kept for trying them together."""
        for place, candidate in enumerate(candidates):
            worse = self._worse_before(candidate)
            if worse:
                self.findings.dropped.append(Dropped(candidate.text, worse))
                continue
            left = self._left() - (self._cost() if reserve else 0.0)
            if left < self._cost():
                self.findings.untried.append(candidate)
                continue
            self._try(present, candidate, max(self._cost(), left / (len(candidates) - place)))

    def _try(self, present: Subject, candidate: Candidate, seconds: float) -> None:
        """Measure one value in about so many seconds."""
        end = self._passed() + seconds
        try:
            with self._opened({candidate.name: candidate.value}) as trial:
                effect = self._compare(present, trial, end)
                difference = self._bench.compare(present, trial) if candidate.changes_bits else ""
        except TrialError as error:
            self.findings.dropped.append(Dropped(candidate.text, str(error).rstrip(".")))
            self._terms.say(f"{candidate.text}: left out: {error}")
            return
        self.findings.tried.append(Tried(candidate, effect, difference))
        self._terms.say(f"{candidate.text}: {effect.text()}")

    def _compare(self, present: Subject, trial: Subject, end: float) -> Effect:
        """Measure both in the order A B B A until the effect is clear, or the time is used."""
        pairs: list[Pair] = []
        for block in range(MOST_BLOCKS):
            limit = end if block >= LEAST_BLOCKS else self._terms.seconds
            if block and self._passed() + 4 * self._measure_s > limit:
                break
            bands = [self._band()]
            scores: list[float] = []
            for subject, offset in ((present, 0), (trial, 0), (trial, 1), (present, 1)):
                scores.append(self._measured(subject, self._seed + offset))
                bands.append(self._band())
            self._seed += 2
            pairs.append(Pair(scores[0], scores[1], tuple(bands[:3])))
            pairs.append(Pair(scores[3], scores[2], tuple(bands[2:])))
            effect = Effect.of(pairs)
            if block + 1 >= LEAST_BLOCKS and self._is_clear(effect):
                break
        return Effect.of(pairs)

    def _is_clear(self, effect: Effect) -> bool:
        """Whether more pairs would change nothing that matters."""
        if effect.mean + effect.half < self._terms.least / 2 and effect.half < 0.05:
            return True
        return effect.half < max(self._terms.least / 2, CLEAR * abs(effect.mean))

    def _choose(self, present: Subject) -> None:
        """Try together what helps alone, and choose it if it does."""
        found = self.findings
        best: dict[str, Tried] = {}
        for row in found.tried:
            before = best.get(row.candidate.name)
            if row.effect.mean - row.effect.half > 0 and row.effect.mean >= self._terms.least:
                best[row.candidate.name] = row if before is None or row.effect.mean > before.effect.mean else before
        helpful = sorted(best.values(), key=lambda row: -row.effect.mean)
        if not helpful:
            return
        effect = self._together(present, helpful)
        if effect is not None and len(helpful) > 1 and effect.mean < helpful[0].effect.mean - helpful[0].effect.half:
            found.note = f"together they give {effect.text()}, less than the best of them alone"
            effect = self._together(present, helpful := helpful[:1])
        if effect is None:
            found.note = found.note or "there was no time to try them once more; give more --minutes"
        elif effect.mean - effect.half <= 0:
            found.note = f"tried once more with new pairs, they give {effect.text()}, which may be nothing"
        else:
            found.chosen, found.together = helpful, effect

    def _together(self, present: Subject, rows: Sequence[Tried]) -> Effect | None:
        """Return the effect of several values together; None without time, or if they do not start together."""
        if self._left() < self._cost():
            return None
        names = ", ".join(row.candidate.text for row in rows)
        try:
            with self._opened({row.candidate.name: row.candidate.value for row in rows}) as trial:
                effect = self._compare(present, trial, self._terms.seconds)
        except TrialError as error:
            self.findings.note = f"together they do not start: {error}"
            return None
        self._terms.say(f"together ({names}): {effect.text()}")
        return effect

    def _worse_before(self, candidate: Candidate) -> str:
        """Return why a value further away need not be tried: a nearer one was worse."""
        for row in self.findings.tried:
            is_nearer = row.candidate.name == candidate.name and row.candidate.value == candidate.nearer
            if candidate.nearer is not None and is_nearer and row.effect.mean + row.effect.half < 0:
                return f"a smaller step in the same direction, {row.candidate.text}, was worse: {row.effect.text()}"
        return ""

    @contextmanager
    def _opened(self, values: Mapping[str, Any]) -> Iterator[Subject]:
        """Open a configuration and measure it once in vain, since the first load pays for pages that it touches first."""
        begin = self._bench.now()
        with self._bench.opened(values) as subject:
            self._open_s = self._bench.now() - begin
            self._measured(subject, self._seed)
            self._seed += 1
            yield subject

    def _measured(self, subject: Subject, seed: int) -> float:
        """Return the score of a load, and learn how long loads take."""
        begin = self._bench.now()
        try:
            score = subject.measure(seed)
        except TrialError as error:
            if subject is self._present:  # no fault of the value that is tried beside it
                raise CoreError(f"The server without a trial: {error}") from None
            raise
        took = self._bench.now() - begin
        self._measure_s = took if not self._measure_s else 0.7 * self._measure_s + 0.3 * took
        if score <= 0:
            raise TrialError("its answers have no token")
        return score

    def _band(self) -> float:
        speed = self._bench.bandwidth()
        self.findings.bandwidths.append(speed)
        return speed

    def _cost(self) -> float:
        """Return the seconds that the fewest pairs of a value take, its start among them."""
        return self._open_s + (1 + 4 * LEAST_BLOCKS) * self._measure_s

    def _passed(self) -> float:
        return self._bench.now() - self._begin

    def _left(self) -> float:
        return self._terms.seconds - self._passed()
