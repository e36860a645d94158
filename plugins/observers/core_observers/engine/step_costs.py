"""The cost of steps and the cached prefixes of prompts, for servers that quote times.

Owns: `StepCosts`, an observer of the engine, with a cost model of its own that learns from every step. Never does: predict a
request, keep a block, or change what a step computes. Called by: the engine core; servers with `--quotes`, through its utility.

It learns from every step once a server has asked for a quote, so an engine whose servers quote nothing loses no time. Where
requests may move between engines it learns from the start, since the first call is then that of a drain: from the first steps,
then from those with a prompt and from one in `SELDOM` of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Self

import msgspec

from core.engine.observer import Engine, EngineObserver, EngineStart
from core.scheduler.step import Step
from core.scheduler.step_cost import StepCost, work_of
from core_kv_connectors.handoff.roles import BOTH, roles_of
from core_observers.engine.pinned_prefix import Prefix

ENOUGH: Final = 64
"""Steps from each of which it learns at first."""
SELDOM: Final = 16


class StepCosts(EngineObserver):
    """The cost model of one engine. clock: returns seconds. learns: whether it learns before the first call, from few steps."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, learns: bool = False) -> None:
        self._clock = clock
        self._engine: Engine | None = None
        self._cost = StepCost() if learns else None
        self._is_sparing = learns
        self._begun: dict[int, float] = {}
        self._ended = 0.0

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Return the observer; every engine has it, since any server may quote."""
        return cls(learns=roles_of(start.config) == BOTH)

    def attach(self, engine: Engine) -> None:
        """Keep the engine."""
        self._engine = engine

    def submitted(self, step: Step) -> None:
        """Note when a step begins."""
        # Most steps continue decodes alone, and teach what those before them have taught.
        cost = self._cost
        if cost is not None and (
            not self._is_sparing or step.number % SELDOM == 0 or step.chunks or cost.num_observed < ENOUGH
        ):
            self._begun[step.number] = self._clock()

    def finished(self, step: Step) -> None:
        """Learn from a step that has its result."""
        if self._cost is None or not self._begun:  # a step that is not submitted yet begins later than this one ends
            return
        now = self._clock()
        begun = self._begun.pop(step.number, None)
        if begun is not None:
            # A step that was planned ahead begins when the previous one has ended.
            self._cost.observe(work_of(step.plan, step.num_decodes), now - max(begun, self._ended))
        self._begun = {number: at for number, at in self._begun.items() if number > step.number}
        self._ended = now

    def utilities(self, client: int) -> dict[str, Callable[..., Any]]:
        """Return the call of servers that quote."""
        return {"step_costs": self.step_costs}

    def step_costs(self, prefixes: list[dict[str, Any]], lengths: list[int]) -> dict[str, Any]:
        """Return what was learned (`cost`), and of each prompt its cached tokens and the bytes of its keys and values.

        prefixes: prompts, see `Prefix`. Their cached tokens are only looked at. lengths: of the prompts with their answers.
        Also returns how many tokens the KV cache holds (`room`).
        """
        if self._cost is None:
            self._cost = StepCost()
        if prefixes or not lengths:  # a server that quotes asks; a request that moves has lengths alone
            self._is_sparing = False
        assert self._engine is not None, "the engine core has attached it"
        kv = self._engine.scheduler.kv
        size = self._engine.executor.page_bytes
        asked = [msgspec.convert(prefix, Prefix) for prefix in prefixes]
        return {
            "cost": self._cost.state() if self._cost.num_observed else None,
            "cached": [kv.lookup_now(prefix.sequence()).num_tokens for prefix in asked],
            "bytes": [size * sum(rule.max_blocks(length) for rule in kv.growth) for length in lengths],
            "room": kv.pool.capacity * kv.block_size // max(sum(rule.holds_slots for rule in kv.growth), 1),
        }
