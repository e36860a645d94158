"""Methods of the user's own on the worker: which are called, with what, and what is said of mistakes."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from core.api.config import PluginChoices
from core.api.errors import UserError, UtilityError
from core.engine.observer import EngineStart
from core_observers.engine.worker_extension import WorkerExtension
from core_observers.observer_settings import WORKER_EXTENSION
from tests.engine.fakes import make_config


class Mine:
    def __init__(self) -> None:
        self.calls = 0

    def count(self, more: int = 0) -> dict[str, int]:
        self.calls += 1
        return {"blocks": self.num_blocks + more, "calls": self.calls}  # type: ignore[attr-defined]

    def fails(self) -> None:
        raise ValueError("no such thing")

    def odd(self) -> type:
        return object

    def _hidden(self) -> int:
        return 1


class Broken:
    def __init__(self) -> None:
        raise ValueError("not today")


def start_of(path: str | None) -> EngineStart:
    arguments = {} if path is None else {WORKER_EXTENSION: {"cls": path}}
    plugins = PluginChoices(loader="dummy", platform="cpu", arguments=arguments)
    return EngineStart(msgspec.structs.replace(make_config(), plugins=plugins))


def engine() -> Any:
    queue = SimpleNamespace(beside=lambda call: call())
    return SimpleNamespace(queue=queue, executor=SimpleNamespace(worker=SimpleNamespace(num_blocks=24)))


@pytest.mark.parametrize("path", [f"{__name__}.Mine", f"{__name__}:Mine"])
def test_methods_are_called_with_the_worker(path: str) -> None:
    extension = WorkerExtension.open(start_of(path))
    assert extension is not None
    whole = engine()
    extension.attach(whole)
    call = extension.utilities(0)["call_worker_extension"]
    assert call("count", [], {}) == {"blocks": 24, "calls": 1}
    assert call("count", [2], {}) == {"blocks": 26, "calls": 2}
    assert "object" in call("odd", [], {})
    assert whole.executor.worker.extension.count()["calls"] == 3
    for method, words in (("fails", "ValueError: no such thing"), ("_hidden", "it has count, fails, odd")):
        with pytest.raises(UtilityError, match=words):
            call(method, [], {})
    with pytest.raises(UtilityError, match="TypeError"):
        call("count", [], {"less": 1})


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere.Mine", "cannot be imported"),
        (f"{__name__}.engine", "is no class"),
        ("Mine", "expected module:Class"),
        (f"{__name__}:Yours", "has no 'Yours'"),
    ],
)
def test_classes_that_are_not_there_are_sentences(path: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        WorkerExtension.open(start_of(path))


def test_what_cannot_be_made_ends_the_start() -> None:
    assert WorkerExtension.open(start_of(None)) is None
    broken = WorkerExtension.open(start_of(f"{__name__}.Broken"))
    assert broken is not None
    with pytest.raises(UserError, match="not today"):
        broken.attach(engine())
    mine = WorkerExtension.open(start_of(f"{__name__}.Mine"))
    assert mine is not None
    with pytest.raises(UserError, match="no worker"):
        mine.attach(SimpleNamespace(queue=None, executor=object()))
