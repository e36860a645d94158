"""Grammars whose masks take too long end their own request; a busy machine, and slow masks now and then, end none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.api.errors import RequestError
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.structured_outputs import CompiledGrammar
from core_runtime.executor.constraints.forced_text import ForcedTexts
from core_runtime.executor.constraints.grammars import GrammarMask, Grammars
from core_runtime.executor.constraints.mask_work import BANK_S, SHARE, SINGLE_S, SLOW_S, MaskBudget
from core_runtime.sampling.state import MaskError

GRAMMAR = CompiledGrammar("scripted", "key", b"")
OUTPUT = np.zeros(0, np.int32)


class Machine:
    """Its clocks, and a backend whose masks take as long as it is told: `wall` seconds, `busy` of them at work."""

    def __init__(self) -> None:
        self.now = 0.0
        self.worked = 0.0
        self.wall = self.busy = 0.0
        self.error: Exception | None = None

    def matcher(self, data: bytes) -> Machine:
        return self

    def fill(self, words: Any) -> bool:
        self.now += max(self.wall, self.busy)
        self.worked += self.busy
        if self.error is not None:
            raise self.error
        return False

    def accept(self, token: int) -> bool:
        self.fill(None)
        return True

    def rollback(self, count: int) -> None: ...

    is_terminated = False


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def grammars(machine: Machine) -> Grammars:
    found = Grammars(lambda name: machine, ForcedTexts(lambda text: [], lambda token: b""), 64)  # type: ignore[arg-type,return-value]
    found.budget = MaskBudget(lambda: machine.now, lambda: machine.worked)
    return found


def mask(grammars: Grammars) -> GrammarMask:
    request = EngineRequest("r", 0, [1], SamplingParams(max_tokens=4), 0, [], [], [], b"", 0.0)
    return grammars.mask(request, GRAMMAR)


def test_a_mask_that_takes_too_long_ends_its_sequence(machine: Machine, grammars: Grammars) -> None:
    one = mask(grammars)
    machine.busy = SINGLE_S * 1.2
    one(OUTPUT, 0)  # the first one is only seen to be slow
    with pytest.raises(MaskError, match=r"^structured_outputs takes too much work: .* took 60 ms"):
        one(OUTPUT, 0)
    machine.busy = SLOW_S / 2
    mask(grammars)(OUTPUT, 0)


@pytest.mark.parametrize("ask", [lambda one: one(OUTPUT, 0), lambda one: one.allows(OUTPUT, 0, 5)])
def test_all_slow_masks_share_one_budget(machine: Machine, grammars: Grammars, ask: Any) -> None:
    machine.busy = 0.02
    running = [mask(grammars) for _ in range(64)]
    for _ in range(3):
        for one in running.copy():
            try:
                ask(one)
            except MaskError:
                running.remove(one)
    # As many as the budget pays for, the first mask of each, which is not counted, and what comes in meanwhile.
    assert machine.worked < 64 * 0.02 + 2 * 2 * BANK_S + 0.1 * 64
    machine.worked = 0.0
    begin = machine.now
    for _ in range(50):
        for one in running.copy():
            try:
                ask(one)
            except MaskError:
                running.remove(one)
    assert machine.worked <= BANK_S + SHARE * (machine.now - begin) + 0.02 * 64


def test_a_busy_machine_ends_nothing(machine: Machine, grammars: Grammars) -> None:
    """A request that was ended would be a MaskError here."""
    one = mask(grammars)
    machine.wall = 10 * SINGLE_S
    for _ in range(100):
        one(OUTPUT, 0)


def test_slow_masks_now_and_then_end_nothing(machine: Machine, grammars: Grammars) -> None:
    """Nor here, where two masks of ten are slow."""
    one = mask(grammars)
    for step in range(1000):
        machine.busy = 3 * SLOW_S if step % 10 < 2 else SLOW_S / 100
        one(OUTPUT, 0)
        machine.now += 0.01


def test_a_backend_that_meets_a_limit_is_no_defect(machine: Machine, grammars: Grammars) -> None:
    machine.error = RequestError("llguidance says: too many items (limit 50000).")
    with pytest.raises(MaskError, match=r"^structured_outputs takes too much work. llguidance says: too many items"):
        mask(grammars)(OUTPUT, 0)
    machine.error = RuntimeError("oh")
    with pytest.raises(MaskError, match=r"^The grammar backend 'scripted' failed"):
        mask(grammars)(OUTPUT, 0)
