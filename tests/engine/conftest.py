"""Makes the fakes importable here and in engine processes that the tests start."""

import os
import sys
from pathlib import Path

import pytest

from core_kit.devices.wired import wired
from core_tokens.tokenizer import Tokenizer

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


@pytest.fixture(autouse=True)
def fakes_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = (HERE, str(Path(HERE).parent), os.environ.get("PYTHONPATH"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


@pytest.fixture(params=["in place", "wired"])
def also_wired(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with the fake executor in place and once more behind a wire."""
    if request.param == "wired":
        from fakes import FakeExecutor

        monkeypatch.setattr(FakeExecutor, "execute", wired(FakeExecutor.execute))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    from fakes import byte_source

    return Tokenizer.from_source(byte_source(), None)
