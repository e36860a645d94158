"""Runs a test with the fake executor in place and once more behind a wire."""

import pytest
from scheduler.fake_model import FakeExecutor

from core_kit.devices.wired import wired


@pytest.fixture(params=["in place", "wired"])
def also_wired(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "wired":
        monkeypatch.setattr(FakeExecutor, "execute", wired(FakeExecutor.execute))
