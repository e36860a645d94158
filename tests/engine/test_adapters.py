"""Adapters in a running engine: names, memory, who waits and who does not."""

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes import FakeExecutor, composed, make_config, reference
from test_engine_core import drain, request, tokens

from core.api.adapters import AdapterSource
from core.api.errors import ConfigError, UtilityError
from core.api.messages import EngineOutput, EngineRequest
from core.engine.core import EngineCore
from tests.engine.adapting import AdaptingExecutor, adapted, adapting_config, digest_of, written

PROMPT = [1, 2, 3, 4, 5, 6]


def asking(name: str, weights: str, max_tokens: int = 5, **fields: Any) -> EngineRequest:
    made = request(name, PROMPT, max_tokens)
    return msgspec.structs.replace(made, adapter=digest_of(weights), **fields)


def engine(*modules: AdapterSource, **settings: Any) -> EngineCore:
    config = adapting_config(*modules, **settings)
    return composed(config, AdaptingExecutor(config))


def load(core: EngineCore, source: AdapterSource, *, replaces: bool = False) -> dict[str, Any]:
    """Load an adapter to the end."""
    ticket = core.call("load_adapter", {"name": source.name, "path": source.path, "replaces": replaces})
    end = time.monotonic() + 30
    while (facts := core.call("loaded_adapter", {"ticket": ticket})) is None:
        assert time.monotonic() < end
        core.idle()
        time.sleep(0)
    return facts


def rest(outputs: list[EngineOutput], weights: str, max_tokens: int) -> bool:
    """Whether a request that had begun goes on with its adapter's tokens to its end."""
    found = tokens(outputs)
    return 0 < len(found) < max_tokens and found == adapted(PROMPT, max_tokens, weights)[-len(found) :]


def listed(core: EngineCore) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in core.call("list_adapters")["adapters"]}


@pytest.fixture
def core(tmp_path: Path) -> Iterator[EngineCore]:
    made = engine(written(tmp_path, "sql"), written(tmp_path, "fr"))
    yield made
    made.executor.let.set()  # type: ignore[attr-defined]
    made.close()


def test_each_request_gets_its_adapters_tokens_beside_others_and_the_base(core: EngineCore) -> None:
    core.add([asking("one", "sql"), asking("two", "fr"), request("base", PROMPT), asking("three", "sql")])
    outputs = drain(core)
    assert tokens(outputs["one"]) == tokens(outputs["three"]) == adapted(PROMPT, 5, "sql")
    assert tokens(outputs["two"]) == adapted(PROMPT, 5, "fr") != adapted(PROMPT, 5, "sql")
    assert tokens(outputs["base"]) == reference(PROMPT, 5)


def test_an_adapter_on_its_way_holds_up_nobody_else(core: EngineCore, tmp_path: Path) -> None:
    late = written(tmp_path, "late")
    load(core, late)
    assert not all(row["is_resident"] for row in listed(core).values()), "three do not fit into two places"
    gone = next(name for name, row in listed(core).items() if not row["is_resident"])
    core.executor.let.clear()  # type: ignore[attr-defined]
    core.add([asking("waits", gone), request("base", PROMPT), asking("runs", "late")])
    found: list[str] = []
    for _ in range(30):
        found += [output.request_id for output in core.step().outputs if output.finish_reason]
    assert set(found) == {"base", "runs"} and core.waits and core.stats().num_deferred == 1
    core.executor.let.set()  # type: ignore[attr-defined]
    assert tokens(drain(core, limit=10_000)["waits"]) == adapted(PROMPT, 5, gone)


def test_what_is_unknown_or_broken_ends_its_own_requests_with_a_sentence(core: EngineCore, tmp_path: Path) -> None:
    core.add([asking("lost", "nowhere"), request("base", PROMPT)])
    outputs = drain(core)
    assert outputs["lost"][-1].finish_reason == "error" and "not loaded" in str(outputs["lost"][-1].stop_reason)
    assert tokens(outputs["base"]) == reference(PROMPT, 5)
    with pytest.raises(UtilityError, match="it fits nothing"):
        load(core, written(tmp_path, "bad", "broken"))
    with pytest.raises(UtilityError, match="cannot be read"):
        load(core, AdapterSource("missing", str(tmp_path / "missing")))
    with pytest.raises(UtilityError, match="'sql' stands for another adapter already"):
        load(core, AdapterSource("sql", written(tmp_path, "other", "other weights").path))
    assert set(listed(core)) == {"sql", "fr"}


def test_files_that_change_end_the_requests_that_need_them_again(core: EngineCore, tmp_path: Path) -> None:
    load(core, written(tmp_path, "third"))
    gone = next(name for name, row in listed(core).items() if not row["is_resident"])
    (tmp_path / gone).write_text("other weights")
    core.add([asking("changed", gone)])
    outputs = drain(core, limit=10_000)
    assert "holds other weights than when it was loaded" in str(outputs["changed"][-1].stop_reason)


def test_the_same_name_with_other_weights_is_another_adapter_and_the_one_before_ends_with_its_requests(
    core: EngineCore, tmp_path: Path
) -> None:
    core.add([asking("before", "sql", 30)])
    core.step()
    facts = load(core, written(tmp_path, "sql", "newer"), replaces=True)
    assert facts["digest"] == digest_of("newer") == listed(core)["sql"]["digest"]
    core.add([asking("after", "newer")])
    outputs = drain(core, limit=10_000)
    assert rest(outputs["before"], "sql", 30)
    assert tokens(outputs["after"]) == adapted(PROMPT, 5, "newer")
    assert outputs["after"][0].num_cached_tokens == 0, "it found the cache of the weights before"
    core.add([request("base", PROMPT)])
    drain(core)
    assert digest_of("sql") not in core.executor.read  # type: ignore[attr-defined]


def test_unloading_takes_no_new_requests_and_ends_with_the_last_one(core: EngineCore) -> None:
    core.add([asking("runs", "sql", 20)])
    core.step()
    core.call("unload_adapter", {"name": "sql"})
    assert set(listed(core)) == {"fr"} and digest_of("sql") in core.executor.placed  # type: ignore[attr-defined]
    with pytest.raises(UtilityError, match="There is no adapter 'sql'"):
        core.call("unload_adapter", {"name": "sql"})
    assert rest(drain(core)["runs"], "sql", 20)
    core.add([request("base", PROMPT)])
    drain(core)
    assert digest_of("sql") not in core.executor.read  # type: ignore[attr-defined]
    core.add([asking("late", "sql")])
    assert "not loaded" in str(drain(core)["late"][-1].stop_reason)


def test_pinned_ones_stay_and_the_least_used_goes(tmp_path: Path) -> None:
    core = engine(*(written(tmp_path, name) for name in ("a", "b")))
    core.call("pin_adapter", {"name": "a"})
    load(core, written(tmp_path, "c"))
    rows = listed(core)
    assert rows["a"]["is_resident"] and rows["a"]["is_pinned"] and not rows["b"]["is_resident"]
    core.call("pin_adapter", {"name": "c"})
    core.add([asking("never", "b")])
    assert "are pinned (--max-cpu-loras)" in str(drain(core, limit=10_000)["never"][-1].stop_reason)
    core.close()


def test_a_request_for_a_place_in_memory_waits_for_those_that_are_there_and_for_no_others(tmp_path: Path) -> None:
    core = engine(*(written(tmp_path, name) for name in ("a", "b")), max_loras=1, max_cpu_loras=1)
    resident, waiting = ("a", "b") if listed(core)["a"]["is_resident"] else ("b", "a")
    core.executor.most_read = 0  # type: ignore[attr-defined]
    core.add([asking("first", resident, 10)])
    core.step()
    core.add([asking("waits", waiting, 3)])
    ended: list[str] = []
    for number in range(400):
        core.add([asking(f"later{number}", resident, 10)])
        ended += [output.request_id for output in core.step().outputs if output.finish_reason]
        if "waits" in ended:
            break
        time.sleep(0.001)
    assert ended[:2] == ["first", "waits"], ended[:3]
    outputs = drain(core, limit=100_000)
    assert all(output[-1].finish_reason == "length" for output in outputs.values())
    assert core.executor.most_read <= 1  # type: ignore[attr-defined]
    core.close()


def test_aborted_and_late_ones_leave_nothing(core: EngineCore, tmp_path: Path) -> None:
    load(core, written(tmp_path, "third"))
    gone = next(name for name, row in listed(core).items() if not row["is_resident"])
    core.executor.let.clear()  # type: ignore[attr-defined]
    core.add([asking("gone", gone), asking("left", gone), asking("left", gone, choice=1)])
    core.add([asking("late", gone, deadline=time.monotonic() + 0.05)])
    core.abort(["gone"])
    core.abort_choices([("left", 1)])
    end = time.monotonic() + 30
    late = []
    while not late and time.monotonic() < end:
        late = [output for output in core.step().outputs if output.request_id == "late"]
    assert late[0].finish_reason == "timeout"
    core.executor.let.set()  # type: ignore[attr-defined]
    outputs = drain(core, limit=10_000)
    assert set(outputs) == {"left"} and {output.choice for output in outputs["left"]} == {0}


def test_adapters_outlive_sleep_and_new_weights_and_are_then_stale(core: EngineCore) -> None:
    executor: Any = core.executor
    core.add([asking("runs", "sql", 20)])
    for _ in range(3):
        core.step()
    core.call("sleep", {"level": 1, "mode": "keep"})
    assert not executor.read and not executor.placed
    with pytest.raises(UtilityError, match="The engine sleeps"):
        core.call("load_adapter", {"name": "x", "path": "/x"})
    core.call("wake_up")
    assert executor.placed == {digest_of("sql"), digest_of("fr")}
    assert not any(row["is_stale"] for row in listed(core).values())
    core.call("update_weights", {"update": {"path": "new"}})
    assert executor.placed == {digest_of("sql"), digest_of("fr")}
    assert all(row["is_stale"] for row in listed(core).values())
    assert rest(drain(core)["runs"], "sql", 20)


def test_one_that_cannot_be_read_after_a_sleep_ends_its_own_requests(core: EngineCore, tmp_path: Path) -> None:
    core.add([asking("lost", "sql", 20), asking("goes on", "fr", 20)])
    for _ in range(3):
        core.step()
    core.call("sleep", {"level": 2, "mode": "keep"})
    (tmp_path / "sql").unlink()
    core.call("wake_up")
    outputs = drain(core, limit=10_000)
    assert "'sql' cannot be used any more" in str(outputs["lost"][-1].stop_reason)
    assert rest(outputs["goes on"], "fr", 20)


def test_an_engine_without_adapters_refuses_requests_that_name_one() -> None:
    config = make_config()
    core = composed(config, FakeExecutor(config))
    core.add([asking("lost", "sql"), request("base", PROMPT)])
    outputs = drain(core)
    assert "not loaded" in str(outputs["lost"][-1].stop_reason) and tokens(outputs["base"]) == reference(PROMPT, 5)
    core.close()


def test_a_start_with_an_adapter_that_cannot_be_used_is_refused_before_the_first_request(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--lora-modules bad=.*it fits nothing"):
        engine(written(tmp_path, "bad", "broken"))
    config = adapting_config()
    with pytest.raises(ConfigError, match="computes no adapters"):
        composed(config, FakeExecutor(config))


def test_thousands_of_loads_and_unloads_leave_nothing_behind(tmp_path: Path) -> None:
    core = engine()
    sources = [written(tmp_path, name) for name in ("a", "b", "c")]

    def turns(count: int) -> int:
        for number in range(count):
            source = sources[number % 3]
            load(core, source)
            core.call("unload_adapter", {"name": source.name})
        gc.collect()
        return len(gc.get_objects())

    core.executor.log = _Nothing()  # type: ignore[attr-defined]
    before, num_threads = turns(300), threading.active_count()
    assert turns(2400) - before < 400
    assert not core.executor.read and not listed(core)  # type: ignore[attr-defined]
    assert threading.active_count() <= num_threads  # threads of earlier tests may end meanwhile
    core.close()


class _Nothing(list):
    def append(self, item: object) -> None:
        """Keep nothing."""
