"""Makes the fakes importable here and in engine processes that the tests start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


@pytest.fixture(autouse=True)
def fakes_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", HERE + (os.pathsep + inherited if inherited else ""))
