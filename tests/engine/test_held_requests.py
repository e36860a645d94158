"""A sequence waits until its grammar is prepared; nothing else does."""

import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
from fakes import FakeExecutor, composed, make_config, reference
from test_engine_core import drain, request, tokens

from core.api.messages import EngineRequest
from core.api.structured_outputs import CompiledGrammar
from core.engine.core import EngineCore

PATIENCE_S = 30.0


class PreparingExecutor(FakeExecutor):
    """Prepares a grammar when it is let; the grammar `broken` fails."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.let = threading.Event()
        self.known: set[str] = set()
        self.asked: list[str] = []

    def is_prepared(self, grammar: CompiledGrammar) -> bool:
        return grammar.key in self.known

    def prepare(self, grammar: CompiledGrammar) -> None:
        self.asked.append(grammar.key)
        assert self.let.wait(PATIENCE_S)
        if grammar.key == "broken":
            raise ImportError("no such library")
        self.known.add(grammar.key)


@pytest.fixture
def core() -> Iterator[EngineCore]:
    config = make_config()
    core = composed(config, PreparingExecutor(config))
    yield core
    core.executor.let.set()  # type: ignore[attr-defined]
    core.close()


def held(name: str, key: str = "a", choice: int = 0, deadline: float = 0.0) -> EngineRequest:
    grammar = CompiledGrammar("library", key, b"")
    return msgspec.structs.replace(request(name, [1, 2, 3]), grammar=grammar, choice=choice, deadline=deadline)


def let(core: EngineCore) -> None:
    core.executor.let.set()  # type: ignore[attr-defined]


def test_others_run_while_it_waits_and_then_it_runs(core: EngineCore) -> None:
    core.add([held("one"), held("two"), request("free", [5, 6])])
    found: list[str] = []
    for _ in range(20):
        found += [output.request_id for output in core.step().outputs if output.finish_reason]
    assert found == ["free"] and core.has_work() and core.waits and core.stats().num_waiting == 2
    let(core)
    outputs = drain(core, limit=10_000)
    assert all(tokens(outputs[name]) == reference([1, 2, 3], 5) for name in ("one", "two"))
    assert core.executor.asked == ["a"]  # type: ignore[attr-defined]
    core.add([held("third")])
    assert not core.waits, "its grammar is prepared"
    assert tokens(drain(core)["third"]) == reference([1, 2, 3], 5)


def test_one_that_fails_ends_alone_with_a_sentence(core: EngineCore) -> None:
    let(core)
    core.add([held("bad", "broken"), held("good")])
    outputs = drain(core, limit=10_000)
    assert outputs["bad"][-1].finish_reason == "error"
    assert "'library' failed (ImportError: no such library)" in str(outputs["bad"][-1].stop_reason)
    assert tokens(outputs["good"]) == reference([1, 2, 3], 5)


def test_aborted_ones_never_run(core: EngineCore) -> None:
    core.add([held("gone"), held("left"), held("left", choice=1)])
    core.abort(["gone"])
    core.abort_choices([("left", 1)])
    let(core)
    outputs = drain(core, limit=10_000)
    assert set(outputs) == {"left"} and {output.choice for output in outputs["left"]} == {0}


def test_its_deadline_passes_while_it_waits(core: EngineCore) -> None:
    core.add([held("late", deadline=time.monotonic() + 0.05)])
    outputs = drain(core, limit=10_000)
    assert outputs["late"][-1].finish_reason == "timeout"
