"""Makes the fakes of the engine's tests importable here and in engine processes that the tests start."""

import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PLACES = [str(TESTS / "engine"), str(TESTS)]
sys.path += [place for place in PLACES if place not in sys.path]


@pytest.fixture(autouse=True)
def fakes_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [*PLACES, os.environ.get("PYTHONPATH")])))
