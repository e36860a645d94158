"""What differs between the results of two runs, and between their plugins.

Owns: these comparisons and their words. Never does: compute. Called by: the canary's observer, `core plugins doctor`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from core_observers.runs.run import Package, Run


class Results(Protocol):
    """Results of the canary's probe. logprobs: hexadecimal floats; of a pooling model, bytes of a vector."""

    @property
    def tokens(self) -> list[int]:
        """Return the probe's tokens."""
        ...

    @property
    def logprobs(self) -> list[str]:
        """Return their log-probabilities."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of results. what: `tokens`, or `bits` where only the log-probabilities differ."""

    what: str
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def difference(before: Results, now: Results) -> Difference | None:
    """Return how the results differ, None if they are equal to the bit."""
    if before.tokens != now.tokens:
        return Difference("tokens", _tokens_differ(before.tokens, now.tokens))
    if before.logprobs != now.logprobs:
        return Difference("bits", _bits_differ(before.logprobs, now.logprobs))
    return None


@dataclass(frozen=True, slots=True)
class Change:
    """One package whose code is not that of an earlier run. before, now: None where it was not, or is not, in use."""

    before: Package | None
    now: Package | None

    @property
    def package(self) -> Package:
        """The package that is in use now, or was."""
        found = self.now or self.before
        assert found is not None
        return found

    @property
    def label(self) -> str:
        """Name the package with both versions."""
        if self.now is None:
            return f"{self.package.label} (no longer in use)"
        if self.before is None:
            return f"{self.now.label} (not in use before)"
        if self.before.version == self.now.version:
            return f"{self.now.label} (other code, same version)"
        return f"{self.now.label} (before: {self.before.version})"


def changes_between(before: Sequence[Package], now: Sequence[Package]) -> list[Change]:
    """Return the packages that differ, in the order of their modules."""
    old, new = ({package.module: package for package in packages} for packages in (before, now))
    modules = sorted(old.keys() | new.keys())
    return [Change(old.get(name), new.get(name)) for name in modules if old.get(name) != new.get(name)]


def other_differences(before: Run, now: Run) -> list[str]:
    """Return what differs besides code of plugins: versions, instruction set, numerics."""
    found = []
    for name in sorted(before.environment.keys() | now.environment.keys()):
        old, new = before.environment.get(name), now.environment.get(name)
        if old != new:
            found.append(f"{name} {new or 'none'} (before: {old or 'none'})")
    if before.version != now.version:
        found.append(f"core-engine {now.version} (before: {before.version})")
    for task in sorted(before.choices.keys() | now.choices.keys()):
        chosen, earlier = now.choices.get(task, []), before.choices.get(task, [])
        if chosen != earlier:
            found.append(f"{task} {'+'.join(chosen) or 'none'} (before: {'+'.join(earlier) or 'none'})")
    return found


def _tokens_differ(before: Sequence[int], now: Sequence[int]) -> str:
    pairs = enumerate(zip(before, now, strict=False))
    for index, (old, new) in pairs:
        if old != new:
            return f"token {index + 1} of the probe's {len(before)} is {new}, was {old}"
    return f"the probe has {len(now)} tokens, had {len(before)}"


def _bits_differ(before: Sequence[str], now: Sequence[str]) -> str:
    try:
        pairs = [(float.fromhex(old), float.fromhex(new)) for old, new in zip(before, now, strict=True)]
    except ValueError:
        return "the probe's vector differs"
    unequal = [(index, abs(old - new)) for index, (old, new) in enumerate(pairs) if old != new]
    if not unequal:
        return "the probe's log-probabilities differ in their sign of zero"
    first = unequal[0][0]
    size = max(distance for _, distance in unequal)
    shown = f"by up to {size:.2g}" if math.isfinite(size) else "by more than any number"
    return (
        f"{len(unequal)} of the probe's {len(pairs)} log-probabilities differ, the first at token {first + 1}, {shown}"
    )
