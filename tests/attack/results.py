"""What an attack found: checks and measured series, by phase. Plain data, written and read by the report."""

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Check:
    """One thing that was looked at. value: what was found; target: what was wanted; note: more, for people."""

    name: str
    ok: bool
    value: str = ""
    target: str = ""
    note: str = ""
    group: str = ""


@dataclass(slots=True)
class Phase:
    """name: as given to --only. series: measured seconds by what was measured. limits: seconds, of some of them."""

    name: str
    title: str
    checks: list[Check] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def check(
        self, name: str, ok: bool, value: object = "", target: object = "", note: str = "", group: str = ""
    ) -> bool:
        """Add a check; returns whether it passed."""
        self.checks.append(Check(name, ok, str(value), str(target), note, group))
        return ok

    def at_most(self, name: str, value: float, limit: float, unit: str = "s", note: str = "") -> bool:
        """A check that a number is small enough."""
        return self.check(name, value <= limit, f"{_short(value)} {unit}", f"at most {_short(limit)} {unit}", note)

    @property
    def failed(self) -> list[Check]:
        """What did not pass."""
        return [check for check in self.checks if not check.ok]


class Clock:
    """A time limit. seconds: of the whole."""

    def __init__(self, seconds: float) -> None:
        self.begin = time.monotonic()
        self.seconds = seconds

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.begin

    @property
    def left(self) -> float:
        """Seconds that are left, 0 when it is over."""
        return max(0.0, self.seconds - self.elapsed)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
