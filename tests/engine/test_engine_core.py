"""The loop: same tokens as without an engine, and no request or step that can stop it."""

import pytest
from fakes import EOS, FAIL, RAISE, FakeExecutor, make_config, reference, tokens

from core.api.errors import EngineDeadError, UtilityError
from core.api.messages import EngineOutput, EngineRequest
from core.api.sampling_params import SamplingParams
from core.engine.core import EngineCore
from core.engine.faults import FAULTS_BEFORE_PROBE
from core.scheduler.results import StepOutputs
from core.scheduler.step import Step
from tests.inside import state_of

pytestmark = pytest.mark.usefixtures("also_wired")


def request(name: str, prompt: list[int], max_tokens: int = 5) -> EngineRequest:
    return EngineRequest(name, 0, prompt, SamplingParams(max_tokens=max_tokens), seed=1, stop_token_ids=[EOS])


def drain(core: EngineCore, limit: int = 200) -> dict[str, list[EngineOutput]]:
    found: dict[str, list[EngineOutput]] = {}
    while core.has_work():
        limit -= 1
        assert limit > 0, "the engine does not come to an end"
        message = core.step()
        assert message.epoch == core.epoch
        for output in message.outputs:
            found.setdefault(output.request_id, []).append(output)
        core.scheduler.check_integrity()
    return found


def drain_handles(core: EngineCore) -> dict[int, list[EngineOutput]]:
    found: dict[int, list[EngineOutput]] = {}
    while core.has_work():
        for output in core.step().outputs:
            found.setdefault(output.handle, []).append(output)
    return found


@pytest.fixture
def core() -> EngineCore:
    config = make_config()
    return EngineCore(config, FakeExecutor(config), epoch=3)


def test_generates_what_the_model_generates(core: EngineCore) -> None:
    prompts = {f"r{i}": list(range(10 + i, 20 + 2 * i)) for i in range(12)}
    core.add(request(name, prompt, 7) for name, prompt in prompts.items())
    outputs = drain(core)
    for name, prompt in prompts.items():
        assert tokens(outputs[name]) == reference(prompt, 7)
        assert outputs[name][-1].finish_reason == "length"


def test_failing_step_ends_its_sequences_and_others_go_on(core: EngineCore) -> None:
    core.add([request("bad", [RAISE, 1])])
    outputs = drain(core)
    assert outputs["bad"][-1].finish_reason == "error"
    assert "a poisoned prompt" in str(outputs["bad"][-1].stop_reason)
    core.add([request("good", [1, 2, 3])])
    assert tokens(drain(core)["good"]) == reference([1, 2, 3], 5)
    assert core.executor.sequences == {}  # type: ignore[attr-defined]


def test_a_bad_request_may_be_repeated(core: EngineCore) -> None:
    for attempt in range(40):
        core.add([request(f"bad{attempt}", [RAISE])])
        assert drain(core)[f"bad{attempt}"][-1].finish_reason == "error"
    core.add([request("good", [1])])
    assert tokens(drain(core)["good"]) == reference([1], 5)


def test_many_bad_requests_at_once_end_alone(core: EngineCore) -> None:
    core.add([request(f"bad{number}", [RAISE]) for number in range(40)])
    core.add([request("good", [1])])
    outputs = drain(core)
    assert all(outputs[f"bad{number}"][-1].finish_reason == "error" for number in range(40))
    assert tokens(outputs["good"]) == reference([1], 5)


def test_requests_that_break_the_scheduler_end_alone(core: EngineCore) -> None:
    for number in range(40):
        half = request(f"bad{number}", [1, 2, 3, 4, 5])
        half.cache_salt = "\ud800"
        core.add([half])
    core.add([request("good", [1])])
    outputs = drain(core)
    assert all("surrogates" in str(outputs[f"bad{number}"][-1].stop_reason) for number in range(40))
    assert tokens(outputs["good"]) == reference([1], 5)


@pytest.mark.parametrize("operation", ["schedule", "finish"])
@pytest.mark.parametrize("blames", [True, False])
def test_a_scheduler_that_always_breaks_is_fatal(
    core: EngineCore, operation: str, blames: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = core.scheduler

    def broken(*arguments: object) -> None:
        state_of(scheduler).current = next(iter(state_of(scheduler).roster), None) if blames else None
        raise ZeroDivisionError("an ordinary defect")

    monkeypatch.setattr(scheduler, operation, broken)
    core.add([request(f"r{number}", [1]) for number in range(12)])
    with pytest.raises(EngineDeadError, match=r"times in a row.*ordinary defect"):
        drain(core)


def test_an_executor_that_always_fails_is_fatal(core: EngineCore) -> None:
    core.executor.raising = 10**6  # type: ignore[attr-defined]
    with pytest.raises(EngineDeadError, match=r"steps in a row.*told to fail"):
        for attempt in range(FAULTS_BEFORE_PROBE):
            core.add([request(f"r{attempt}", [1])])
            drain(core)


def test_sequence_that_fails_alone(core: EngineCore) -> None:
    core.add([request("bad", [FAIL, 1]), request("good", [1, 2, 3])])
    outputs = drain(core)
    assert outputs["bad"][-1].finish_reason == "error"
    assert tokens(outputs["good"]) == reference([1, 2, 3], 5)


def test_refused_request_comes_back_as_an_error(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(request: EngineRequest) -> None:
        raise ValueError("no such luck")

    monkeypatch.setattr(core.scheduler, "add", add)
    core.add([request("a", [1])])
    assert drain(core)["a"][0].stop_reason == "no such luck"


def test_a_refusal_names_the_sequence_that_came_second(core: EngineCore) -> None:
    first, second = request("a", [1, 2, 3]), request("a", [4])
    first.handle, second.handle = 10, 11
    core.add([first, second])
    outputs = drain_handles(core)
    assert outputs[11][-1].finish_reason == "error"
    assert "in use" in str(outputs[11][-1].stop_reason)
    assert outputs[10][-1].finish_reason == "length"


def test_abort_gives_blocks_back(core: EngineCore) -> None:
    core.add([request("a", list(range(20)), 30), request("b", list(range(30)), 30)])
    for _ in range(3):
        core.step()
    core.abort(["a", "unknown"])
    core.abort_choices([("b", 0), ("b", 7)])
    assert drain(core) == {}
    assert core.step().stats.num_running == 0
    assert core.step().stats.kv_cache_usage == 0.0
    assert core.executor.sequences == {}  # type: ignore[attr-defined]


def test_interrupted_step_is_made_up_for(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    core.add([request("a", [1, 2], 30)])
    core.step()
    core.abort(["a"])
    core.add([request("b", [1, 2], 4)])
    run = core.executor.execute

    def interrupt(plan: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(core.executor, "execute", interrupt)
    with pytest.raises(KeyboardInterrupt):
        core.step()
    monkeypatch.setattr(core.executor, "execute", run)
    core.abort(["b"])
    core.add([request("c", [5], 4)])
    assert tokens(drain(core)["c"]) == reference([5], 4)
    assert core.executor.sequences == {}  # type: ignore[attr-defined]


def test_a_scheduler_without_progress_is_an_error(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    core.add([request("a", [1])])
    monkeypatch.setattr(core.scheduler, "schedule", Step)
    monkeypatch.setattr(core.scheduler, "finish", lambda step, result: StepOutputs())
    with pytest.raises(EngineDeadError, match="planned nothing"):
        for _ in range(2000):
            core.step()


def test_utilities(core: EngineCore) -> None:
    assert core.call("check_integrity") is None
    assert core.call("reset_prefix_cache") is True
    with pytest.raises(UtilityError, match="'close' is unknown; expected one of check_integrity, "):
        core.call("close")
    with pytest.raises(UtilityError, match="'ping' has no argument 'loudly'; expected: none"):
        core.call("ping", {"loudly": True})
