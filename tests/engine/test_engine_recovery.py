"""A step that fails, a scheduler that breaks, steps planned ahead: what users get."""

import time
from typing import Any

import pytest
from fakes import EOS, RAISE, FakeExecutor, make_config, reference, tokens

from core.api.errors import EngineDeadError
from core.api.messages import EngineOutput, EngineRequest
from core.api.sampling_params import SamplingParams
from core.engine.core import EngineCore
from core.kv.integrity import IntegrityError
from core_frontend.output_processor import OutputProcessor
from core_supervision.link.inproc import InprocClient
from tests.inside import state_of

pytestmark = pytest.mark.usefixtures("also_wired")


def request(name: str, prompt: list[int], max_tokens: int = 6, **more: Any) -> EngineRequest:
    return EngineRequest(name, 0, prompt, SamplingParams(max_tokens=max_tokens), 1, stop_token_ids=[EOS], **more)


def client(**scheduler: Any) -> InprocClient:
    config = make_config(scheduler=scheduler)
    return InprocClient(config, FakeExecutor(config))


def drain(engine: InprocClient, limit: int = 400) -> dict[str, list[EngineOutput]]:
    found: dict[str, list[EngineOutput]] = {}
    while engine.has_work():
        limit -= 1
        assert limit > 0, "the engine does not come to an end"
        for output in engine.step():
            found.setdefault(output.request_id, []).append(output)
        engine.core.scheduler.check_integrity()
    return found


PROMPTS = {f"r{i}": list(range(10 + i, 16 + 2 * i)) for i in range(7)}


@pytest.mark.parametrize("ahead", [False, True])
def test_one_poisoned_request_among_many_ends_alone(ahead: bool) -> None:
    engine = client(async_scheduling=ahead)
    engine.add([request(name, prompt) for name, prompt in PROMPTS.items()])
    for _ in range(2):
        engine.step()
    engine.add([request("bad", [RAISE, 1]), request("late", [5, 6])])
    found = drain(engine)
    assert found["bad"][-1].finish_reason == "error"
    assert "a poisoned prompt" in str(found["bad"][-1].stop_reason)
    assert tokens(found["late"]) == reference([5, 6], 6)
    assert all(tokens(found[name])[-4:] == reference(prompt, 6)[-4:] for name, prompt in PROMPTS.items())
    assert engine.core.executor.sequences == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize("ahead", [False, True])
def test_many_poisoned_requests_end_and_those_among_them_go_on(ahead: bool) -> None:
    engine = client(async_scheduling=ahead)
    for round_ in range(3):
        engine.add([request(f"bad{round_}-{number}", [RAISE, number]) for number in range(20)])
        engine.add([request(f"good{round_}", [5, round_])])
    found = drain(engine)
    for round_ in range(3):
        assert tokens(found[f"good{round_}"]) == reference([5, round_], 6)
        assert all(found[f"bad{round_}-{number}"][-1].finish_reason == "error" for number in range(20))
    assert len(found) == 63, "what the engine computes for itself is nobody's output"
    engine.core.executor.raising = 10**6  # type: ignore[attr-defined]
    engine.add([request(name, prompt) for name, prompt in PROMPTS.items()])
    with pytest.raises(EngineDeadError, match=r"steps in a row.*told to fail"):
        drain(engine)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_step_that_fails_once_costs_nobody_anything(ahead: bool) -> None:
    engine = client(async_scheduling=ahead)
    engine.add([request(name, prompt) for name, prompt in PROMPTS.items()])
    engine.core.executor.raising = 1  # type: ignore[attr-defined]
    found = drain(engine)
    assert {name: tokens(outputs) for name, outputs in found.items()} == {
        name: reference(prompt, 6) for name, prompt in PROMPTS.items()
    }
    assert engine.stats().num_failed_steps == 1


def test_planning_ahead_changes_no_token_and_hides_the_plan_behind_the_step() -> None:
    engine = client(async_scheduling=True)
    engine.add([request(name, prompt) for name, prompt in PROMPTS.items()])
    found = drain(engine)
    assert {name: tokens(outputs) for name, outputs in found.items()} == {
        name: reference(prompt, 6) for name, prompt in PROMPTS.items()
    }
    config = make_config(options={"delay_s": 0.01}, scheduler={"async_scheduling": True})
    core = EngineCore(config, FakeExecutor(config))
    schedule = core.scheduler.schedule
    under_way: list[int] = []

    def counting() -> Any:
        under_way.append(len(core.scheduler.in_flight))
        return schedule()

    core.scheduler.schedule = counting  # type: ignore[method-assign]
    core.add([request("a", [1, 2], 30)])
    while core.has_work():
        core.step()
    core.close()
    assert sum(count > 0 for count in under_way) >= 28, "a step was planned only once the previous one had ended"


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("operation", ["schedule", "finish"])
def test_a_broken_invariant_is_mended_and_counted(operation: str, ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = client(async_scheduling=ahead)
    scheduler = engine.core.scheduler
    whole = getattr(scheduler, operation)
    calls = 0

    def broken(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            state_of(scheduler).current = state_of(scheduler).roster.find(("r3", 0))
            raise IntegrityError("num_slots", "17 is wrong")
        return whole(*arguments)

    monkeypatch.setattr(scheduler, operation, broken)
    engine.add([request(name, prompt) for name, prompt in PROMPTS.items()])
    found = drain(engine)
    assert found["r3"][-1].finish_reason == "error"
    assert "num_slots: 17 is wrong" in str(found["r3"][-1].stop_reason)
    for name, prompt in PROMPTS.items():
        if name != "r3":
            assert tokens(found[name]) == reference(prompt, 6)
    assert engine.stats().num_violations == 1


def test_a_deadline_ends_a_request_with_what_it_has() -> None:
    config = make_config(options={"delay_s": 0.02})
    engine = InprocClient(config, FakeExecutor(config))
    engine.add([request("a", [1, 2], 60, deadline=time.monotonic() + 0.2), request("b", [1, 2], 20)])
    found = drain(engine)
    assert found["a"][-1].finish_reason == "timeout"
    assert 0 < len(tokens(found["a"])) < 60
    assert tokens(found["a"]) == reference([1, 2], 60)[: len(tokens(found["a"]))]
    assert tokens(found["b"]) == reference([1, 2], 20)


def test_outputs_of_a_decode_step_travel_as_columns() -> None:
    engine = client()
    prompts = {name: prompt[:4] for name, prompt in PROMPTS.items()}
    engine.add([request(name, prompt) for name, prompt in prompts.items()])
    engine.core.step()
    message = engine.core.step()
    assert len(message.tokens) == message.num_tokens == len(prompts)
    assert message.outputs == []
    assert [token for _, _, token in message.tokens] == [reference(prompt, 2)[1] for prompt in prompts.values()]


@pytest.mark.parametrize(("interval", "sizes"), [(1, [1] * 10), (4, [1, 4, 4, 1]), (50, [1, 9])])
def test_stream_interval_gathers_tokens_but_not_the_first(interval: int, sizes: list[int]) -> None:
    from core.api.sampling_params import RequestOutputKind
    from core_frontend.prompts.input_processor import InputProcessor

    engine = client()
    processor = OutputProcessor(None, interval)
    params = SamplingParams(max_tokens=10, output_kind=RequestOutputKind.DELTA, detokenize=False)
    entry = InputProcessor(make_config().model, None).process("a", [1, 2], params)
    processor.add(entry)
    engine.add(entry.requests)
    seen = []
    while engine.has_work():
        seen += [len(output.outputs[0].token_ids) for output in processor.process(engine.step()).outputs]
    assert seen == sizes
