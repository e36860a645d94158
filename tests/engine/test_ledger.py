"""Epochs and start indices: what the client drops and what it must not survive."""

from typing import Any

import pytest

from core.api.errors import EngineDeadError
from core.api.messages import EngineOutput, EngineOutputs, EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.stats import SchedulerStats
from core_supervision.link.ledger import Ledger


def request(name: str, choice: int = 0) -> EngineRequest:
    return EngineRequest(name, choice, [1], SamplingParams(), seed=1)


def output(of: EngineRequest, start: int, token_ids: list[int], **more: Any) -> EngineOutput:
    return EngineOutput(*of.key, start, token_ids, handle=of.handle, **more)


def step(*outputs: EngineOutput, epoch: int = 1) -> EngineOutputs:
    return EngineOutputs(epoch, list(outputs), SchedulerStats())


def test_consecutive_tokens_pass() -> None:
    ledger = Ledger(1)
    first, second = requests = [request("a", 0), request("a", 1)]
    ledger.admit(requests)
    outputs = [output(first, 0, [5, 6]), output(second, 0, [7]), output(first, 2, [8])]
    assert ledger.accept(step(*outputs)) == outputs


@pytest.mark.parametrize("start", [0, 1, 3])
def test_gap_is_fatal(start: int) -> None:
    ledger = Ledger(1)
    one = request("a")
    ledger.admit([one])
    ledger.accept(step(output(one, 0, [5, 6])))
    with pytest.raises(EngineDeadError, match=rf"'a'.*continued at token {start} where 2 was expected"):
        ledger.accept(step(output(one, start, [7])))


def test_stale_epoch_is_dropped() -> None:
    ledger = Ledger(2)
    one = request("a")
    ledger.admit([one])
    assert ledger.accept(step(output(one, 4, [5]), epoch=1)) == []
    assert len(ledger.accept(step(output(one, 0, [5]), epoch=2))) == 1


def test_forgotten_and_finished_sequences_are_dropped() -> None:
    ledger = Ledger(1)
    requests = [request("a", 0), request("a", 1), request("b"), request("c")]
    ledger.admit(requests)
    ledger.forget(["b", "unknown"])
    ledger.forget_choices([("a", 1), ("unknown", 0)])
    ledger.accept(step(output(requests[3], 0, [1], finish_reason="stop")))
    assert ledger.accept(step(*(output(gone, 9, [1]) for gone in requests[1:]))) == []
    ledger.forget(["a"])
    assert len(ledger) == 0


def test_what_comes_late_of_an_aborted_request_is_not_that_of_who_has_its_id_now() -> None:
    ledger = Ledger(1)
    old, new = request("a"), request("a")
    ledger.admit([old])
    ledger.accept(step(output(old, 0, [5, 6])))
    ledger.forget(["a"])
    ledger.admit([new])
    assert ledger.accept(step(output(old, 2, [7], finish_reason="length"))) == []
    assert ledger.accept(step(output(new, 0, [8]))) == [output(new, 0, [8])]
