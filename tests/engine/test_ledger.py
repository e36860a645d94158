"""Epochs and start indices: what the client drops and what it must not survive."""

from __future__ import annotations

import pytest

from core.api.errors import EngineDeadError
from core.api.messages import EngineOutput, EngineOutputs, EngineRequest, SchedulerStats
from core.api.sampling_params import SamplingParams
from core.engine.ledger import Ledger


def request(name: str, choice: int = 0) -> EngineRequest:
    return EngineRequest(name, choice, [1], SamplingParams(), seed=1)


def step(*outputs: EngineOutput, epoch: int = 1) -> EngineOutputs:
    return EngineOutputs(epoch, list(outputs), SchedulerStats())


def test_consecutive_tokens_pass() -> None:
    ledger = Ledger(1)
    ledger.admit([request("a", 0), request("a", 1)])
    outputs = [EngineOutput("a", 0, 0, [5, 6]), EngineOutput("a", 1, 0, [7]), EngineOutput("a", 0, 2, [8])]
    assert ledger.accept(step(*outputs)) == outputs


@pytest.mark.parametrize("start", [0, 1, 3])
def test_gap_is_fatal(start: int) -> None:
    ledger = Ledger(1)
    ledger.admit([request("a")])
    ledger.accept(step(EngineOutput("a", 0, 0, [5, 6])))
    with pytest.raises(EngineDeadError, match=rf"'a'.*continued at token {start} where 2 was expected"):
        ledger.accept(step(EngineOutput("a", 0, start, [7])))


def test_stale_epoch_is_dropped() -> None:
    ledger = Ledger(2)
    ledger.admit([request("a")])
    assert ledger.accept(step(EngineOutput("a", 0, 4, [5]), epoch=1)) == []
    assert len(ledger.accept(step(EngineOutput("a", 0, 0, [5]), epoch=2))) == 1


def test_forgotten_and_finished_sequences_are_dropped() -> None:
    ledger = Ledger(1)
    ledger.admit([request("a", 0), request("a", 1), request("b"), request("c")])
    ledger.forget(["b", "unknown"])
    ledger.forget_choices([("a", 1), ("unknown", 0)])
    ledger.accept(step(EngineOutput("c", 0, 0, [1], finish_reason="stop")))
    late = [EngineOutput("a", 1, 9, [1]), EngineOutput("b", 0, 9, [1]), EngineOutput("c", 0, 9, [1])]
    assert ledger.accept(step(*late)) == []
    ledger.forget(["a"])
    assert len(ledger) == 0
