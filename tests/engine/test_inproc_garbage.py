"""The collector of garbage while an engine is built in the caller's process."""

import gc

import pytest

from core.api.errors import PluginError
from core.engine.observer import ObserverFactory
from core_supervision.link import inproc
from core_supervision.link.inproc import InprocClient
from tests.engine.fakes import FakeExecutor, make_config


def test_it_waits_while_the_engine_is_built_and_then_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    during: list[bool] = []

    def find_observers() -> dict[str, ObserverFactory]:
        during.append(gc.isenabled())
        return {}

    monkeypatch.setattr(inproc, "find_observers", find_observers)
    config = make_config()
    assert gc.isenabled()
    InprocClient(config, FakeExecutor(config)).close()
    assert gc.isenabled()
    gc.disable()
    try:
        InprocClient(config, FakeExecutor(config)).close()
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert during == [False, False]


def test_a_failed_start_leaves_it_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise PluginError("an observer cannot be imported")

    monkeypatch.setattr(inproc, "find_observers", broken)
    config = make_config()
    with pytest.raises(PluginError):
        InprocClient(config, FakeExecutor(config))
    assert gc.isenabled()
