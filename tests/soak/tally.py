"""What a soak has seen so far, and its summary.

Owns: the counts and their form as Markdown. Never does: judge an answer. Called by: clients and injuries, at once.
"""

import statistics
import threading
from collections import Counter
from dataclasses import dataclass, field

NOTES = 20


@dataclass
class Tally:
    """right, wrong, lost: answers. cut: those that ended with a server or an API process, and were asked for again.

    refused:  requests that were told to come back, and came.
    left:     clients that went away in the middle.
    turns:    of sessions, each compared with an earlier one that had the same tokens.
    leaked:   what was left behind, as sentences.
    halted:   what held the server although nobody wanted that any more, as sentences.
    operated: what operators did, by name.
    recovery: seconds from the death of an engine to the next one.
    gaps:     the longest of each stream, in seconds.
    """

    right: int = 0
    cut: int = 0
    refused: int = 0
    left: int = 0
    turns: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    halted: list[str] = field(default_factory=list)
    operated: Counter[str] = field(default_factory=Counter)
    injuries: Counter[str] = field(default_factory=Counter)
    recovery: list[float] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, gap_s: float) -> None:
        """A right answer."""
        with self._lock:
            self.right += 1
            self.gaps.append(gap_s)

    def count(self, what: str) -> None:
        """One more of `cut`, `refused`, `left` or `turns`."""
        with self._lock:
            setattr(self, what, getattr(self, what) + 1)

    def err(self, what: str) -> None:
        """A wrong answer."""
        with self._lock:
            self.wrong.append(what)

    def lose(self, what: str) -> None:
        """An answer that never came."""
        with self._lock:
            self.lost.append(what)

    def leak(self, what: str) -> None:
        """Something is left behind."""
        with self._lock:
            self.leaked.append(what)

    def halt(self, what: str) -> None:
        """The server computes nothing, and nobody wants that."""
        with self._lock:
            self.halted.append(what)

    def operate(self, name: str) -> None:
        """An operator did something, and took it back."""
        with self._lock:
            self.operated[name] += 1

    def injure(self, name: str) -> None:
        """Something was done to the server."""
        with self._lock:
            self.injuries[name] += 1

    def recover(self, seconds: float) -> None:
        """An engine follows a dead one."""
        with self._lock:
            self.recovery.append(seconds)

    def restart(self, seconds: float) -> None:
        """A server follows a dead one."""
        with self._lock:
            self.restarts.append(seconds)

    @property
    def num_answers(self) -> int:
        """Answers that have come whole."""
        return self.right + len(self.wrong) + self.turns

    @property
    def held(self) -> bool:
        """Whether nothing was wrong, lost or leaked, and nobody halted the server."""
        return not (self.wrong or self.lost or self.leaked or self.halted)

    @property
    def totals(self) -> str:
        """How much was compared, and what was done to the server, in a line."""
        deaths = f"{len(self.recovery)} engines and {len(self.restarts)} servers died"
        return f"{self.right} right answers, {self.turns} turns of sessions, {deaths}, {self.injuries.total()} injuries"

    @property
    def verdict(self) -> str:
        """In a line."""
        halted = f"halted {len(self.halted)} times" if self.halted else "nobody halted"
        return f"{len(self.wrong)} wrong, {len(self.lost)} lost, {len(self.leaked)} leaked, {halted}"

    def summary(self, facts: str) -> str:
        """As Markdown."""
        rows = {
            "answers compared": str(self.right + len(self.wrong)),
            "turns of sessions": str(self.turns),
            "deaths of engines": f"{len(self.recovery)}",
            "deaths of servers": f"{len(self.restarts)}",
            "**wrong**": str(len(self.wrong)),
            "**lost**": str(len(self.lost)),
            "**leaked**": str(len(self.leaked)),
            "**halted**": str(len(self.halted)),
            "cut off by the death of a server or an API process, and asked again": str(self.cut),
            "refused with a time to come back, and answered then": str(self.refused),
            "clients that left in the middle": str(self.left),
            "seconds from an engine's death to the next engine, p50 / p99": _percentiles(self.recovery),
            "seconds from a server's death to the next server, p50 / p99": _percentiles(self.restarts),
            "longest pause of a stream in seconds, p50 / p99": _percentiles(self.gaps),
        }
        lines = ["# Soak", "", f"{facts}: {self.verdict}.", "", "| what | how much |", "|---|---:|"]
        lines += [f"| {name} | {value} |" for name, value in rows.items()]
        lines += ["", "| injury | times |", "|---|---:|"]
        lines += [f"| {name} | {count} |" for name, count in sorted(self.injuries.items())]
        lines += ["", "| operators | times |", "|---|---:|"]
        lines += [f"| {name} | {count} |" for name, count in sorted(self.operated.items())]
        for name in ("wrong", "lost", "leaked", "halted"):
            lines += [f"- {name}: {what}" for what in getattr(self, name)[:NOTES]]
        return "\n".join(lines) + "\n"


def _percentiles(values: list[float]) -> str:
    if len(values) < 2:
        return " ".join(f"{value:.2f}" for value in values) or "none"
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return f"{cuts[49]:.2f} / {cuts[98]:.2f}"
