"""The connector of two halves that `core plugins new kv_connector.halves` writes, in engines of tests.

Owns: its package, and halves that fail on demand. Never does: start pytest. Called by: the tests of connectors with two halves.
"""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from core_kit.skeleton import write_package
from core_kv_connectors.halves.connector import SplitConnector
from core_kv_connectors.halves.thread import HalfThread
from tests.inside import core_of

NAME = "twin"


def write_twin(parent: Path, patch: pytest.MonkeyPatch, name: str = NAME) -> Path:
    """Write the package, let it be imported, and return a file that is a plugin by itself."""
    folder, *_ = write_package("kv_connector.halves", name, parent)
    patch.syspath_prepend(folder)
    plugin = folder / f"{name}.py"
    plugin.write_text(f'KIND = "kv_connector"\nfrom core_{name}.manifest import CONTRACT, core_load, core_spec\n')
    return plugin


def options_of(plugin: Path, directory: Path) -> dict[str, Any]:
    """Arguments of an engine with the connector."""
    return {
        "plugins": str(plugin),
        "kv_connectors": [NAME],
        "kv_connectors_config": {NAME: {"directory": str(directory)}},
    }


def connector_of(llm: Any) -> SplitConnector:
    (connector,) = [one for one in core_of(llm).kv_services.connectors if isinstance(one, SplitConnector)]
    return connector


def thread_of(llm: Any) -> HalfThread:
    return connector_of(llm)._link.half


def save_in_idle_time(llm: Any, seconds: float = 20.0) -> None:
    """Idle time until every cached block is saved."""
    core, end = core_of(llm), time.monotonic() + seconds
    while core.idle() is not None:
        assert time.monotonic() < end, "blocks are left that a half has not reported"
        time.sleep(0.001)


class Harmed:
    """A worker half in front of another one, with one method that fails: raises, hangs until `free` is set, or loses pages."""

    def __init__(self, half: Any, method: str, how: str) -> None:
        self.half, self.method, self.how = half, method, how
        self.free = threading.Event()
        self.num_harmed = 0
        self.lost: list[int] = []

    def __getattr__(self, name: str) -> Any:
        called = getattr(self.half, name)
        if name == self.method and not self.free.is_set():
            return lambda *arguments: self.fail(called, *arguments)
        return called

    def poll(self) -> Any:
        if self.method == "poll" and not self.free.is_set():
            return self.fail(self.half.poll)
        done, failed = self.half.poll()
        lost, self.lost = self.lost, []
        return done, [*failed, *lost]

    def fail(self, called: Any, *arguments: Any) -> Any:
        self.num_harmed += 1
        if self.how == "raises":
            raise RuntimeError("the place is gone")
        if self.how == "hangs":
            self.free.wait()
            return called(*arguments)
        slots = arguments[1] if self.method == "load" else arguments[0]
        self.lost += slots
        return None
