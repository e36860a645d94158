"""Engines that are functions of the changes in force, on a simulated machine that is never quiet."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core_commands.doctor.diagnosis import Suspect
from core_commands.doctor.starts import Bypass
from core_commands.doctor.trial import Outcome
from core_observers.runs.compare import Change
from core_observers.runs.run import Package

GOOD = Outcome([1, 2, 3, 4, 5, 6, 7], [(-0.1 * (1 + index)).hex() for index in range(7)])
STEP_S = 0.002
PROMPT_S = 0.01


def suspects(number: int, stuck: Sequence[int] = (), inexact: Sequence[int] = ()) -> list[Suspect]:
    """So many changed packages. stuck: those that cannot be bypassed. inexact: those that are left out."""
    made = []
    for index in range(number):
        before = Package(f"core-p{index}", "1.0", f"core_p{index}", f"a{index}", (f"logits_processor.p{index}",))
        now = Package(f"core-p{index}", "1.1", f"core_p{index}", f"b{index}", (f"logits_processor.p{index}",))
        bypass = Bypass(path=Path(f"p{index}"), exact=index not in inexact)
        made.append(Suspect(Change(before, now), None if index in stuck else bypass))
    return made


@dataclass
class Machine:
    """Starts engines. effect: outcome by the numbers of changes in force. slow: share by which these are slower.

    noise: of a round, as the deviation of a lognormal factor. The machine's speed drifts besides, by up to a half.
    """

    total: int
    effect: Callable[[frozenset[int]], Outcome] = lambda in_force: GOOD
    slow: Callable[[frozenset[int]], float] = lambda in_force: 0.0
    noise: float = 0.0
    seed: int = 0
    number: int = 0
    rounds: int = 0
    open: int = 0
    draw: random.Random = field(init=False)
    speed: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    def start(self, bypassed: Collection[Bypass]) -> StandIn:
        """Start one engine."""
        self.number += 1
        self.open += 1
        gone = {int(str(each.path)[1:]) for each in bypassed}
        return StandIn(self, frozenset(range(self.total)) - gone)

    def factor(self) -> float:
        """Noise of one round, and of the machine."""
        self.rounds += 1
        self.speed = min(max(self.speed * self.draw.lognormvariate(0, self.noise / 4), 0.7), 1.5)
        stalled = self.noise > 0 and self.draw.random() < 0.05
        return self.speed * self.draw.lognormvariate(0, self.noise) * (3.0 if stalled else 1.0)


class StandIn:
    """One engine."""

    def __init__(self, machine: Machine, in_force: frozenset[int]) -> None:
        self.outcome = machine.effect(in_force)
        self._machine = machine
        self._factor = 1.0 + machine.slow(in_force)

    def round(self) -> tuple[float, float, float]:
        factor = self._factor * self._machine.factor()
        return PROMPT_S * factor, STEP_S * factor, STEP_S * factor

    def close(self) -> None:
        self._machine.open -= 1
