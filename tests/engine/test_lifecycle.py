"""Pauses, sleep and updates in the middle of answers: nobody is lost, and tokens do not change."""

import os
from typing import Any

import msgspec
import pytest
from engine.sleeping import SleepingExecutor
from fakes import EOS, make_config, reference, tokens

from core.api.errors import UserError, UtilityError
from core.api.messages import EngineOutput, EngineRequest
from core.api.sampling_params import SamplingParams
from core_supervision import persistent_flags as lasting
from core_supervision.link.anonymous_file import anonymous_file
from core_supervision.link.inproc import InprocClient

PROMPTS = {f"r{i}": list(range(10 + i, 16 + 2 * i)) for i in range(7)}
NUM_TOKENS = 8


def client(*, lasting_file: int | None = None, **scheduler: Any) -> InprocClient:
    config = make_config(scheduler=scheduler)
    config = msgspec.structs.replace(config, sleeps=True, lasting_file=lasting_file)
    return InprocClient(config, SleepingExecutor(config))


def request(name: str) -> EngineRequest:
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    return EngineRequest(name, 0, PROMPTS[name], params, 1, stop_token_ids=[EOS])


def drain(engine: InprocClient, found: dict[str, list[EngineOutput]], limit: int = 400) -> None:
    while engine.has_work():
        limit -= 1
        assert limit > 0, "the engine does not come to an end"
        for output in engine.step():
            found.setdefault(output.request_id, []).append(output)
        engine.core.scheduler.check_integrity()


def begun(engine: InprocClient, found: dict[str, list[EngineOutput]], num_steps: int = 3) -> None:
    """Some requests, a few steps further."""
    engine.add([request(name) for name in list(PROMPTS)[:4]])
    for _ in range(num_steps):
        for output in engine.step():
            found.setdefault(output.request_id, []).append(output)


def expect_all(found: dict[str, list[EngineOutput]]) -> None:
    for name, prompt in PROMPTS.items():
        assert tokens(found[name]) == reference(prompt, NUM_TOKENS), name
        assert found[name][-1].finish_reason == "length"


CHANGES = {
    "pause": [("pause", {"mode": "keep"}), ("resume", {})],
    "pause_and_keep_cache": [("pause", {"mode": "keep", "clear_cache": False}), ("resume", {})],
    "sleep": [("sleep", {"level": 1}), ("wake_up", {})],
    "parts": [("sleep", {"level": 2}), ("wake_up", {"tags": ["weights"]}), ("wake_up", {"tags": ["kv_cache"]})],
    "both": [("pause", {"mode": "keep"}), ("sleep", {"level": 1}), ("wake_up", {}), ("resume", {})],
    "update": [("update_weights", {"update": {"path": "x"}}), ("reload_weights", {})],
}


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_answers_go_on_with_the_same_tokens(change: str, ahead: bool) -> None:
    engine = client(async_scheduling=ahead)
    found: dict[str, list[EngineOutput]] = {}
    begun(engine, found)
    names = list(PROMPTS)
    for index, (method, arguments) in enumerate(CHANGES[change]):
        state = engine.core.call(method, arguments)
        assert engine.core.has_work(), "the change is told"
        if state["is_halted"]:
            num_before = sum(map(len, found.values()))
            num_computing = sum(len(step.plan.slots) for step in engine.core.scheduler.in_flight)
            drain(engine, found)
            assert sum(map(len, found.values())) == num_before + num_computing
            if index == 0:
                engine.add([request(name) for name in names[4:]])
                assert engine.stats().num_waiting >= 3
    live = {name for name, outputs in found.items() if outputs[-1].finish_reason is None}
    assert live
    engine.add([request(name) for name in names[4:] if change == "update"])
    drain(engine, found)
    expect_all(found)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("method", ["pause", "sleep"])
def test_abort_ends_those_that_are_there(method: str, ahead: bool) -> None:
    engine = client(async_scheduling=ahead)
    found: dict[str, list[EngineOutput]] = {}
    begun(engine, found)
    engine.core.call(method, {"mode": "abort"})
    drain(engine, found)
    assert {outputs[-1].finish_reason for outputs in found.values()} == {"abort"}
    assert len(found) == 4
    engine.add([request("r5")])
    engine.abort(["r5"])
    engine.add([request("r6")])
    assert not engine.has_work()
    engine.core.call("resume" if method == "pause" else "wake_up")
    found.clear()
    drain(engine, found)
    assert tokens(found["r6"]) == reference(PROMPTS["r6"], NUM_TOKENS)
    assert list(found) == ["r6"]


def test_wait_lets_them_end_and_holds_those_that_come() -> None:
    engine = client()
    found: dict[str, list[EngineOutput]] = {}
    begun(engine, found)
    state = engine.core.call("pause", {"mode": "wait"})
    assert not state["is_halted"] and state["is_paused"]
    engine.add([request(name) for name in list(PROMPTS)[4:]])
    with pytest.raises(UtilityError, match="Requests still run"):
        engine.core.call("sleep", {"mode": "wait"})
    drain(engine, found)
    assert {outputs[-1].finish_reason for outputs in found.values()} == {"length"}
    assert len(found) == 4
    assert engine.core.call("lifecycle")["is_halted"]
    assert engine.stats().num_waiting == 3
    engine.core.call("resume")
    drain(engine, found)
    expect_all(found)


def test_a_sleep_that_fails_changes_nothing() -> None:
    engine = client()
    found: dict[str, list[EngineOutput]] = {}
    begun(engine, found)
    reloader = engine.core.executor.reloader  # type: ignore[attr-defined]
    reloader.failure = OSError(28, "No space left on device")
    with pytest.raises(UtilityError, match="No space left on device"):
        engine.core.call("sleep")
    reloader.failure = UserError("it does not fit")
    with pytest.raises(UtilityError, match="it does not fit"):
        engine.core.call("update_weights", {"update": {"path": "x"}})
    reloader.failure = None
    assert not engine.core.call("lifecycle")["is_halted"]
    engine.add([request(name) for name in list(PROMPTS)[4:]])
    drain(engine, found)
    expect_all(found)


def test_clients_hear_of_each_change() -> None:
    engine = client()
    for method, arguments, expected in (
        ("pause", {}, ("", 0, True)),
        ("update_weights", {"update": {"path": "x", "weight_version": "v1"}}, ("v1", 0, True)),
        ("sleep", {"level": 2}, ("v1", 2, True)),
        ("resume", {}, ("v1", 2, False)),
        ("wake_up", {}, ("v1", 0, False)),
    ):
        engine.core.call(method, arguments)
        assert engine.has_work()
        stats = engine.core.step().stats
        assert (stats.weight_version, stats.sleep_level, stats.is_paused) == expected
        assert not engine.has_work()


def test_updates_are_gathered_and_dropped() -> None:
    engine = client()
    calls = engine.core.executor.reloader.calls  # type: ignore[attr-defined]
    engine.core.call("start_weight_update")
    engine.core.call("update_weights", {"update": {"path": "a"}})
    engine.core.call("start_weight_update")
    engine.core.call("update_weights", {"update": {"path": "b"}})
    engine.core.call("update_weights", {"update": {"path": "c"}})
    assert engine.core.call("finish_weight_update", {"weight_version": "v"})["weight_version"] == "v"
    assert calls == ["stage a", "discard a", "stage b", "stage c", "apply b,c"]


def test_the_next_engine_sleeps_as_this_one_did() -> None:
    file = anonymous_file("test-lasting", 0)
    try:
        assert lasting.read(file) is None
        engine = client(lasting_file=file)
        engine.core.call("update_weights", {"update": {"path": "x"}})
        engine.core.call("pause")
        engine.core.call("sleep", {"level": 2})
        engine.core.call("wake_up", {"tags": ["weights"]})
        record = lasting.read(file)
        assert record is not None and record.weights == engine.core.config.weights
        reasons = tuple(holder.reason for holder in record.holders)
        assert (record.sleep_level, record.missing, reasons) == (2, ("kv_cache",), ("pause", "sleep"))
        following = client(lasting_file=file)
        state = following.core.call("lifecycle")
        assert (state["sleep_level"], state["missing"], state["is_paused"]) == (2, ["kv_cache"], True)
        os.pwrite(file, b"torn" * 8, 0)
        os.pwrite(file, b"torn" * 8, lasting.PLACE_BYTES)
        assert lasting.read(file) is None
    finally:
        os.close(file)
