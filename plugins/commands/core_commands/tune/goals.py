"""The goals of a trial, and the one number by which two measurements are compared.

Owns: `Goals`. Never does: measure. Called by: `core tune`.

The score is the output tokens a second, divided by the factor by which the worst limit is exceeded. Where all limits are
kept, more throughput is better; where one is broken, keeping it is worth as much as throughput.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from core.api.errors import UserError
from core_commands.bench.figures import parse_limits

METRICS: Final = ("ttft", "itl", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Goals:
    """Limits in ms by metric, which `percentile` percent of the requests (of gaps, for `itl`) keep."""

    limits: Mapping[str, float] = field(default_factory=dict)
    percentile: float = 90.0

    @classmethod
    def read(cls, words: Sequence[str], percentile: float) -> Goals:
        """Read words such as `ttft:500`. Raises UserError for words that are none, or that contradict each other."""
        limits = parse_limits(words, "--goal", METRICS)
        if "e2el" in limits and limits["e2el"] <= limits.get("ttft", 0.0):
            raise UserError(
                f"--goal e2el:{limits['e2el']:g} and ttft:{limits['ttft']:g} contradict each other: an answer ends after it "
                "begins; give e2el more, or leave ttft out."
            )
        return cls(limits, percentile)

    def excess(self, result: Mapping[str, Any]) -> float:
        """Return the largest quotient of a figure and its limit; 0 without limits. result: of `bench serve`."""
        return max((self.figure(result, name) / limit for name, limit in self.limits.items()), default=0.0)

    def figure(self, result: Mapping[str, Any], metric: str) -> float:
        """Return the figure of a result that a limit concerns, in ms."""
        return float(result[f"p{self.percentile:g}_{metric}_ms"])

    def score(self, result: Mapping[str, Any]) -> float:
        """Return the score of a result; more is better, and 0 where no request has ended well."""
        return float(result["output_throughput"]) / max(1.0, self.excess(result))

    def text(self) -> str:
        """Return the goals as they are written on the command line."""
        return ",".join(f"{name}:{value:g}" for name, value in self.limits.items()) or "throughput"
