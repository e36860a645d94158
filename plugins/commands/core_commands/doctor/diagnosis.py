"""Which changed plugins made the results, or the pace, differ from those of an earlier run.

Owns: what counts as bad, the search for tokens, bits, failures and pace, and the findings. Never does: print, or write the
quarantine. Called by: `core plugins doctor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from core_commands.doctor import pace
from core_commands.doctor.search import all_bad
from core_commands.doctor.starts import Bypass, Engine, Starter
from core_commands.doctor.trial import Outcome
from core_observers.runs.compare import Change, Results, difference

What = Literal["failure", "tokens", "bits", "time"]


@dataclass(frozen=True)
class Suspect:
    """A change, and how it is bypassed; None: it cannot be. files: names of changed files, as far as known."""

    change: Change
    bypass: Bypass | None
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Changes that are bad: one, or several that are good alone. sentence: what they changed, and how much."""

    what: What
    suspects: tuple[Suspect, ...]
    sentence: str


@dataclass
class Diagnosis:
    """The outcome. symptom: what differs now; None: nothing. notes: sentences about what could not be settled."""

    what: What | None = None
    symptom: str = ""
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing differs."""
        return self.what is None


class Doctor:
    """One diagnosis. before: results of the earlier run. suspects: all changes since. starter: of engines."""

    def __init__(self, before: Results, suspects: Sequence[Suspect], starter: Starter) -> None:
        self._before = before
        self._suspects = list(suspects)
        self._starter = starter
        self._outcomes: dict[frozenset[int], Outcome] = {}
        self._bypassable = [suspect for suspect in suspects if suspect.bypass is not None]

    def diagnose(self, *, with_pace: bool = True) -> Diagnosis:
        """Find the culprits. with_pace: whether time is measured too, which needs memory for two engines."""
        found = Diagnosis()
        now = self._outcome(self._bypassable)
        found.what, found.symptom = _symptom(self._before, now) or (None, "")
        if found.what is not None:
            self._explain_results(found)
        if with_pace and not now.error:
            self._explain_pace(found)
        return found

    def _explain_results(self, found: Diagnosis) -> None:
        """Add the findings about what the probe computes."""
        clean = self._outcome([])
        differs = _symptom(self._before, clean)
        is_bad: Callable[[Sequence[Suspect]], bool]
        if differs is None:
            is_bad = self._is_other
        elif found.what == "tokens" and differs[0] == "bits":
            is_bad = self._has_other_tokens
            found.notes.append(f"With all of these bypassed the tokens are as they were, and {differs[1]}.")
        else:
            found.notes.append(self._why_not_plugins(differs[1]))
            return
        for guilty in all_bad(self._bypassable, is_bad):
            what, sentence = _symptom(self._before, self._outcome(guilty)) or (found.what or "bits", found.symptom)
            found.findings.append(Finding(what, tuple(guilty), sentence))

    def _why_not_plugins(self, left: str) -> str:
        stuck = [suspect.change.label for suspect in self._suspects if suspect.bypass is None]
        if not self._bypassable:
            tried = "None of the changed plugins can be bypassed"
        else:
            tried = f"With {len(self._bypassable)} changed packages bypassed it remains: {left}"
        if len(stuck) == 1 and len(self._suspects) == 1:
            return f"{tried}. {stuck[0]} is the only plugin that changed, and could not be tried."
        if stuck:
            return f"{tried}. Not tried, since nothing else does their work here: {', '.join(stuck)}."
        return f"{tried}. So no plugin did it alone."

    def _explain_pace(self, found: Diagnosis) -> None:
        """Add the findings about time. Only earlier code can show that other code is slower."""
        judged = [suspect for suspect in self._bypassable if suspect.bypass is not None and suspect.bypass.exact]
        unjudged = [suspect.change.label for suspect in self._suspects if suspect not in judged]
        if unjudged:
            found.notes.append(f"Pace is not judged without a copy of the earlier code: {', '.join(unjudged)}.")
        if not judged:
            return
        others = [suspect for suspect in self._bypassable if suspect not in judged]
        with self._opened(others) as base:
            if base.outcome.error:
                found.notes.append(
                    f"Pace is not judged: with all changes bypassed the start fails: {base.outcome.error}"
                )
                return
            first = self._slowdown([*others, *judged], base)
            if first is None:
                return
            if found.what is None:
                found.what, found.symptom = "time", str(first)
            slow = all_bad(judged, lambda in_force: self._slowdown([*others, *in_force], base) is not None)
        for guilty in slow:
            # Measured once more by two new processes: equal engines may differ by some percent for as long as they live.
            with self._opened(others) as base:
                again = self._slowdown([*others, *guilty], base)
            if again is None:
                named = ", ".join(suspect.change.label for suspect in guilty)
                found.notes.append(f"{named}: slower in the search, not when measured again; nothing is concluded.")
            else:
                found.findings.append(Finding("time", tuple(guilty), str(again)))

    def _slowdown(self, in_force: Sequence[Suspect], base: Engine) -> pace.Slowdown | None:
        """Return by how much an engine with these changes is slower than `base`; None: it is not, or does not start."""
        with self._opened(in_force) as engine:
            return None if engine.outcome.error else pace.slowest(pace.compare(engine.round, base.round))

    @contextmanager
    def _opened(self, in_force: Sequence[Suspect]) -> Iterator[Engine]:
        engine = self._engine(in_force)
        try:
            yield engine
        finally:
            engine.close()

    def _is_other(self, in_force: Sequence[Suspect]) -> bool:
        return _symptom(self._before, self._outcome(in_force)) is not None

    def _has_other_tokens(self, in_force: Sequence[Suspect]) -> bool:
        outcome = self._outcome(in_force)
        return bool(outcome.error) or outcome.tokens != self._before.tokens

    def _outcome(self, in_force: Sequence[Suspect]) -> Outcome:
        """Return the probe's results with these changes in force, all other ones bypassed; computed once."""
        key = frozenset(map(id, in_force))
        if key not in self._outcomes:
            self._engine(in_force).close()
        return self._outcomes[key]

    def _engine(self, in_force: Sequence[Suspect]) -> Engine:
        kept = set(map(id, in_force))
        bypassed = [each.bypass for each in self._bypassable if each.bypass is not None and id(each) not in kept]
        engine = self._starter.start(bypassed)
        self._outcomes.setdefault(frozenset(kept), engine.outcome)
        return engine


def _symptom(before: Results, now: Outcome) -> tuple[What, str] | None:
    """Return what differs from the earlier results, and how; None: nothing does."""
    if now.error:
        return "failure", f"the start fails: {now.error.rstrip('.')}"
    found = difference(before, now)
    if found is None:
        return None
    return ("tokens" if found.what == "tokens" else "bits"), found.sentence
