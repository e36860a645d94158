"""What requests take of the machine: processor time and energy, split by their predicted share of each step.

Owns: `EnergyAccounts`, an observer of the engine. Never does: estimate: without a counter that can be read there are no
joules. Called by: the engine core; servers, through its utilities.

Whole nanoseconds and microjoules are split without a rest: what all requests got, and what passed between steps, is what the
counter says. Nothing is read while no request wants to know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Self

from core.engine.observer import Engine, EngineObserver, EngineStart
from core.scheduler.step import Step
from core.scheduler.step_cost import StepCost, work_of
from core_observers.engine.meters import Counters, Reading

MOST_WATCHED: Final = 4096


class EnergyAccounts(EngineObserver):
    """The accounts of the requests that want to know.

    others: nanoseconds and microjoules of the other rows of their steps. between: those between steps while there are accounts.
    """

    def __init__(self, counters: Callable[[], Counters] = Counters) -> None:
        self._make = counters
        self._counters: Counters | None = None
        self._accounts: dict[str, list[int]] = {}
        self._last: Reading = (0, None)
        self.others = [0, 0]
        self.between = [0, 0]
        self._cost = StepCost()
        self._begun = 0.0
        self._in_flight: list[int] = []

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Return the accounts; every engine has them, since any request may want to know."""
        return cls()

    def attach(self, engine: Engine) -> None:
        """Keep the engine."""
        self._engine = engine

    def submitted(self, step: Step) -> None:
        """Close what passed between two steps."""
        if not self._accounts:
            return
        if not self._in_flight:  # else the previous step is being computed, and takes what passes
            _add(self.between, self._passed())
            self._begun = time.monotonic()
        self._in_flight.append(step.number)

    def finished(self, step: Step) -> None:
        """Split what a step took among its rows."""
        if not self._accounts:
            return
        passed = self._passed()
        self._in_flight = [number for number in self._in_flight if number > step.number]
        now = time.monotonic()
        self._cost.observe(work_of(step.plan, step.num_decodes), now - self._begun)
        self._begun = now
        sequences, weights = step.sequences(), self._weights(step)
        for kind, amount in enumerate(passed):
            for sequence, part in zip(sequences, split(amount or 0, weights), strict=True):
                account = self._accounts.get(sequence.request.request_id, self.others)
                account[kind] += part

    def utilities(self, client: int) -> dict[str, Callable[..., Any]]:
        """Return the calls of servers."""
        return {"watch_energy": partial(self.watch, client), "take_energy": partial(self.take, client)}

    def client_gone(self, client: int) -> None:
        """Close the accounts of a client that is gone."""
        self._accounts = {name: each for name, each in self._accounts.items() if not name.startswith(f"{client}:")}

    def watch(self, client: int, request_id: str) -> bool:
        """Open the account of a request that is about to come. False: too many are open."""
        if len(self._accounts) >= MOST_WATCHED:
            return False
        if self._counters is None:
            self._counters = self._make()
        if not self._accounts:
            self._last, self._in_flight = self._counters.read(), []
        self._accounts[_name(client, request_id)] = [0, 0]
        return True

    def take(self, client: int, request_id: str) -> dict[str, int | None] | None:
        """Close an account; returns its nanoseconds and microjoules. None: there is none."""
        account = self._accounts.pop(_name(client, request_id), None)
        if account is None or self._counters is None:
            return None
        return {"processor_ns": account[0], "microjoules": account[1] if self._counters.has_energy else None}

    def _weights(self, step: Step) -> list[float]:
        """Return what each row adds to the predicted time of a step, with an equal part of what every step takes."""
        predict, plan = self._cost.predict, step.plan
        nothing = predict(0, 0, 0)
        each = nothing / len(plan.slots)
        rows = zip(plan.query_lens.tolist(), plan.num_computed.tolist(), strict=True)
        return [
            each - nothing + (predict(0, n, at) if row < step.num_decodes else predict(n, 0, 0, n * (2 * at + n) // 2))
            for row, (n, at) in enumerate(rows)
        ]

    def _passed(self) -> Reading:
        """Return what was used since the last reading."""
        assert self._counters is not None, "there is an account"
        now, last = self._counters.read(), self._last
        self._last = now
        energy = None if now[1] is None or last[1] is None else now[1] - last[1]
        return now[0] - last[0], energy


def split(amount: int, weights: Sequence[float]) -> list[int]:
    """Split a whole number in proportion to weights, without a rest."""
    total, given, reached = sum(weights) or 1.0, 0, 0.0
    parts: list[int] = []
    for weight in weights:
        reached += weight
        upto = amount if len(parts) + 1 == len(weights) else int(amount * reached / total)
        parts.append(upto - given)
        given = upto
    return parts


def _name(client: int, request_id: str) -> str:
    """Return the name under which an engine process knows a client's request."""
    return f"{client}:{request_id}"


def _add(account: list[int], passed: Reading) -> None:
    account[0] += passed[0]
    account[1] += passed[1] or 0
