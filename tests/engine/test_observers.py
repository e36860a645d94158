"""Parts around an engine core: when each is called, what it may hold back, and what happens when one is not installed."""

from pathlib import Path

import msgspec
import pytest
from fakes import FakeExecutor, composed, factories, make_config, reference

from core.api.errors import ConfigError, PluginError, UtilityError
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.stats import SchedulerStats
from core.engine.composition import build_engine, find_observers
from core.engine.core import EngineCore
from core.engine.gate import Gate
from core.engine.observer import Engine, EngineObserver
from core.plugin.discovery import entry_points_of
from core.scheduler.step import Step

PROMPT = [5, 6, 7]


class Notes(EngineObserver):
    """Writes down every call."""

    def __init__(self, name: str, calls: list[str], order: int = 100) -> None:
        self.name = name
        self.order = order
        self.calls = calls

    def attach(self, engine: Engine) -> None:
        self.calls.append(f"{self.name} attach")

    def before_first(self) -> None:
        self.calls.append(f"{self.name} before_first")

    def submitted(self, step: Step) -> None:
        self.calls.append(f"{self.name} submitted {step.number}")

    def finished(self, step: Step) -> None:
        self.calls.append(f"{self.name} finished {step.number}")

    def calling(self, method: str) -> None:
        self.calls.append(f"{self.name} calling {method}")

    def client_gone(self, client: int) -> None:
        self.calls.append(f"{self.name} gone {client}")

    def report(self, stats: SchedulerStats) -> None:
        stats.num_timeouts += 7

    def close(self) -> None:
        self.calls.append(f"{self.name} close")


class Door(EngineObserver, Gate):
    """Holds every sequence back until it is opened."""

    def __init__(self) -> None:
        self.gate = self
        self.is_open = False
        self.held: list[EngineRequest] = []

    @property
    def num_live(self) -> int:
        return len(self.held)

    def attach(self, engine: Engine) -> None:
        self.engine = engine

    def hold(self, request: EngineRequest) -> bool:
        self.held.append(request)
        return True

    def before_step(self) -> None:
        while self.is_open and self.held:
            self.engine.sequences.schedule(self.held.pop(0))

    def take_live(self) -> list[EngineRequest]:
        held, self.held = self.held, []
        return held


def request(name: str = "a", num_tokens: int = 3) -> EngineRequest:
    return EngineRequest(name, 0, PROMPT, SamplingParams(max_tokens=num_tokens, ignore_eos=True), seed=1, handle=1)


def tokens_of(core: EngineCore) -> list[int]:
    core.add([request()])
    return drained(core)


def drained(core: EngineCore) -> list[int]:
    tokens: list[int] = []
    while core.has_work():
        message = core.step()
        tokens += [token for _, _, token in message.tokens]
        tokens += [token for output in message.outputs for token in output.token_ids]
    return tokens


def test_observers_are_called_in_their_order_around_each_step_that_computes() -> None:
    calls: list[str] = []
    config = make_config(scheduler={"async_scheduling": False})
    built = build_engine(
        config,
        FakeExecutor,
        {"a": lambda start: Notes("late", calls), "b": lambda start: Notes("early", calls, 1), "c": lambda start: None},
    )
    start = ["early attach", "late attach", "early before_first", "late before_first"]
    assert calls == start
    assert built.compute(request(num_tokens=1))
    first = ["early submitted 1", "late submitted 1", "early finished 1", "late finished 1"]
    last = ["early submitted 2", "late submitted 2"]  # it tells the executor that the sequence has left
    assert calls[len(start) :] == first + last
    calls.clear()
    with pytest.raises(UtilityError):
        built.call("nonsense")
    built.client_gone(3)
    built.close()
    expected = ("calling nonsense", "calling ", "gone 3", "close")
    assert calls == [f"{name} {what}" for what in expected for name in ("early", "late")]
    assert built.stats().num_timeouts == 14


def test_a_sequence_at_a_gate_counts_as_work_and_runs_once_it_is_released() -> None:
    config = make_config()
    door = Door()
    core = EngineCore(config, FakeExecutor(config), observers=[door])
    core.add([request()])
    assert core.has_work() and core.waits
    assert not core.step().outputs
    door.is_open = True
    assert drained(core) == reference(PROMPT, 3)
    door.is_open = False
    core.add([request("b")])
    core.sequences.end_all()
    assert [output.finish_reason for output in core.step().outputs] == ["abort"]
    assert not core.has_work()


def test_an_engine_without_observers_computes_the_same() -> None:
    config = make_config()
    alone, whole = EngineCore(config, FakeExecutor(config)), composed(config, FakeExecutor(config))
    assert tokens_of(alone) == tokens_of(whole) == reference(PROMPT, 3)
    with pytest.raises(UtilityError, match="expected one of check_integrity, check_params, ping"):
        alone.call("pause")
    assert whole.call("pause")["is_paused"]


SERVED = [("state_canary", "/nowhere", "canary"), ("log_steps", True, "step_log"), ("sleeps", True, "lifecycle")]


@pytest.mark.parametrize(("field", "value", "name"), SERVED)
def test_a_setting_whose_observer_is_not_installed_is_refused(field: str, value: object, name: str) -> None:
    config = msgspec.structs.replace(make_config(), **{field: value})
    rest = {other: factory for other, factory in factories().items() if other != name}
    with pytest.raises(
        ConfigError, match=f"{field} is .* and the engine observer '{name}' that serves it is not installed"
    ):
        build_engine(config, FakeExecutor, rest)


def test_an_observer_that_cannot_be_imported_or_is_there_twice_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(distribution: str, row: str) -> None:
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[core.engine_observers]\n{row}\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    install("broken", "mine = no_such_module:open")
    with pytest.raises(PluginError, match=r"observer 'mine' of broken .* cannot be imported"):
        find_observers()
    install("second", "mine = fakes:factories")
    with pytest.raises(PluginError, match=r"'mine' .* is offered by .* 1\.0 and by .* 1\.0; uninstall one"):
        entry_points_of("core.engine_observers")
