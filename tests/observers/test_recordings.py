"""Recorded steps and their padding are counted, also over changes of weights, and become metrics."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core import LLM
from core.api.stats import SchedulerStats
from core_observers.engine.recordings import Recordings
from core_observers.families.recording_metrics import NAME, recordings
from tests.executor.test_doubles import double
from tests.executor.test_gpu_steps import ROOM, tokens


@pytest.mark.parametrize("counts", [True, False])
def test_an_engine_counts_what_it_records_and_pads(tiny_llama: Path, counts: bool) -> None:
    with LLM(model=str(tiny_llama), **ROOM, **double("gpu"), cudagraph_metrics=counts) as llm:
        tokens(llm)
        work = {name.removeprefix(NAME): count for name, count in llm.stats().work.items() if name.startswith(NAME)}
    if not counts:
        assert work == {}
        return
    assert work["recorded:decode"] >= 1 and work["replayed:decode"] > 10
    # three sequences decode at a time, padded to the four rows of the next size, until some have ended
    assert 0 < work["padding:decode"] < work["rows:decode"]
    calls = work["recorded:decode"] + work["replayed:decode"]
    assert work["rows:decode"] <= 4 * calls


def test_counts_of_a_former_recorder_are_kept() -> None:
    executor = SimpleNamespace(recordings={"replayed:decode": 7, "rows:decode": 9})
    observer = Recordings()
    engine: Any = SimpleNamespace(executor=executor)
    observer.attach(engine)
    stats = SchedulerStats()
    observer.report(stats)
    executor.recordings = {"replayed:decode": 2}
    observer.report(stats)
    observer.report(stats)
    assert stats.work == {NAME + "replayed:decode": 9, NAME + "rows:decode": 9}


def test_metrics_name_kind_and_way() -> None:
    counts = {"steps": 3, NAME + "replayed:decode": 5, NAME + "direct:mixed": 1, NAME + "padding:decode": 4}
    found = {
        (sample.name, *(sample.labels[label] for label in ("kind", "how") if label in sample.labels)): sample.value
        for family in recordings("core:", "m", counts)
        for sample in family.samples
    }
    assert found == {
        ("core:recorded_calls_total", "decode", "replayed"): 5,
        ("core:recorded_calls_total", "mixed", "direct"): 1,
        ("core:padded_rows_total", "decode"): 4,
    }
    assert list(recordings("core:", "m", {"steps": 3})) == []
