"""What is foretold of a request, as intervals, and how often that was right.

Owns: `Ask`, `Interval`, `Foretold`, and `Scores`, which keeps the widths of intervals. Never does: predict a time, or know a
queue. Called by: the forecast, and whoever reads a quote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from core_frontend.quote.widths import GUESS, LEAST, Width

Kind = Literal["first", "end", "usual_end"]
KINDS: tuple[Kind, ...] = ("first", "end", "usual_end")


class Interval(NamedTuple):
    """A time in seconds from now that lies within with a probability of 90%."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Return the middle, for comparisons of one time with another."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to foretell. prompt, cached: tokens of its prompt, and of its cached beginning. most: tokens of each of its
    `n` answers at most."""

    prompt: int
    most: int
    cached: int = 0
    n: int = 1


@dataclass(frozen=True, slots=True)
class Foretold:
    """What was foretold of a request, in seconds from its arrival.

    first: to the first token. spread: by how much that may be wrong, as expected. step: of each further token.
    regime: by which widths are kept apart. factors: on each kind. usual: expected tokens of its answer.
    """

    first: float
    spread: float
    step: float
    usual: float
    regime: int
    factors: dict[Kind, tuple[float, float]]

    def interval(self, kind: Kind, tokens: float = 0.0) -> Interval:
        """Return the interval of one kind; for an end, at this number of tokens."""
        at = self.at(kind, tokens)
        low, high = (self.placed(kind, at, factor) for factor in self.factors[kind])
        return Interval(low, high)

    def placed(self, kind: Kind, at: float, factor: float) -> float:
        """Return the time with a factor on a prediction: of a first token, as many times its spread away from it."""
        if kind != "first" or self.factors[kind] == GUESS:
            return factor * at
        return max(at + (factor - 1.0) * self.spread, 0.0)

    def factor(self, kind: Kind, at: float, seconds: float) -> float:
        """Return the factor with which a prediction would have been right."""
        return 1.0 + (seconds - at) / self.spread if kind == "first" else seconds / at

    def at(self, kind: Kind, tokens: float = 0.0) -> float:
        """Return the prediction itself."""
        if kind == "first":
            return self.first
        return self.first + self.step * ((self.usual if kind == "usual_end" else tokens) - 1)


@dataclass(slots=True)
class Scores:
    """How well was foretold. seen, within: outcomes by kind, and those in their interval. on_outcome: called with kind, whether
    within, the interval's width and by how much the outcome came after its end, in seconds."""

    widths: dict[tuple[Kind, int], Width] = field(default_factory=dict)
    on_outcome: Callable[[Kind, bool, float, float], None] | None = None

    def factors(self, regime: int) -> dict[Kind, tuple[float, float]]:
        """Return the present factors of all kinds."""
        return {kind: self._nearest(kind, regime).factors() for kind in KINDS}

    def miss(self, kind: Kind, foretold: Foretold) -> None:
        """Learn that an outcome comes after its interval, before it comes."""
        self._width(kind, foretold.regime).miss()

    def score(
        self, kind: Kind, foretold: Foretold, predicted: float, seconds: float, *, is_missed: bool = False
    ) -> None:
        """Learn from an outcome. is_missed: whether `miss` was told of it."""
        if predicted <= 0.0:
            return
        factors = foretold.factors[kind]
        low, high = (foretold.placed(kind, predicted, factor) for factor in factors)
        found = foretold.factor(kind, predicted, seconds)
        self._width(kind, foretold.regime).observe(
            found, factors, below=seconds < low, above=seconds > high, is_known=is_missed
        )
        if self.on_outcome is not None:
            self.on_outcome(kind, low <= seconds <= high, high - low, max(seconds - high, 0.0))

    def num_seen(self, kind: Kind) -> int:
        """Return the number of outcomes of a kind."""
        return sum(width.num_seen for (of, _), width in self.widths.items() if of == kind)

    def _nearest(self, kind: Kind, regime: int) -> Width:
        """Return the width of a regime, or of the nearest one of which enough was seen."""
        known = [of for each, of in self.widths if each == kind and self.widths[each, of].num_seen >= LEAST]
        return self._width(kind, min(known, key=lambda of: abs(of - regime), default=regime))

    def _width(self, kind: Kind, regime: int) -> Width:
        return self.widths.setdefault((kind, regime), Width())
