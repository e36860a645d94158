"""A profile of chosen steps begins and ends by itself."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from core.api.config import PluginChoices, ProfilerConfig
from core.api.errors import UtilityError
from core.engine.observer import EngineStart
from core_config.profiler import profile_window
from core_observers.engine.profile_window import ProfileWindow
from core_observers.observer_settings import PROFILE_WINDOW
from tests.engine.fakes import make_config


class Profiler:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.breaks = False

    def start(self) -> str:
        if self.breaks:
            raise UtilityError("Traces cannot be written.")
        self.calls.append("start")
        return "/traces"

    def stop(self) -> None:
        self.calls.append("stop")


def opened(keys: dict[str, int]) -> tuple[ProfileWindow, Profiler]:
    given = profile_window(keys)
    assert given is not None
    plugins = PluginChoices(loader="dummy", platform="cpu", arguments={PROFILE_WINDOW: given})
    config = msgspec.structs.replace(make_config(), plugins=plugins, profiler=ProfilerConfig(directory="/traces"))
    window = ProfileWindow.open(EngineStart(config))
    assert window is not None
    profiler = Profiler()
    engine: Any = SimpleNamespace(
        queue=SimpleNamespace(beside=lambda call: call()), executor=SimpleNamespace(profiler=profiler)
    )
    window.attach(engine)
    return window, profiler


def steps(window: ProfileWindow, count: int) -> None:
    for _ in range(count):
        window.finished(None)  # type: ignore[arg-type]


def test_steps_are_passed_over_and_counted() -> None:
    window, profiler = opened({"delay_iterations": 3, "max_iterations": 2})
    calls = window.utilities(0)
    steps(window, 9)
    assert profiler.calls == []
    assert calls["start_profile"]() == "after 3 steps"
    with pytest.raises(UtilityError, match="already"):
        calls["start_profile"]()
    steps(window, 2)
    assert profiler.calls == []
    steps(window, 1)
    assert profiler.calls == ["start"]
    steps(window, 2)
    assert profiler.calls == ["start", "stop"]
    steps(window, 9)
    calls["stop_profile"]()  # a client asks for the trace
    assert profiler.calls == ["start", "stop"]
    calls["start_profile"]()
    with pytest.raises(UtilityError, match="had not begun"):
        calls["stop_profile"]()


def test_without_a_delay_it_begins_at_once_and_may_be_stopped_early() -> None:
    window, profiler = opened({"max_iterations": 5})
    calls = window.utilities(0)
    assert calls["start_profile"]() == "/traces"
    steps(window, 2)
    calls["stop_profile"]()
    steps(window, 9)
    assert profiler.calls == ["start", "stop"]
    profiler.breaks = True
    with pytest.raises(UtilityError, match="cannot be written"):
        calls["start_profile"]()


def test_a_start_that_fails_after_the_delay_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    window, profiler = opened({"delay_iterations": 1})
    profiler.breaks = True
    window.utilities(0)["start_profile"]()
    steps(window, 3)
    assert "Traces cannot be written" in caplog.text and profiler.calls == []


@pytest.mark.parametrize(
    ("keys", "window"),
    [
        (None, None),
        ({"active_iterations": 3}, None),
        ({"wait-iterations": 1, "warmup_iterations": 2}, {"delay": 3, "length": 5}),
        ({"warmup_iterations": 2, "active_iterations": 7, "max_iterations": 4}, {"delay": 2, "length": 4}),
        ({"delay_iterations": 2}, {"delay": 2, "length": 0}),
    ],
)
def test_keys_of_schedules_are_steps(keys: dict[str, int] | None, window: dict[str, int] | None) -> None:
    assert profile_window(keys) == window
