"""Figures over versions: lines are kept once each, machines are apart, and the page is made of the lines."""

import json

import msgspec
import pytest

from benchmarks import history
from benchmarks.history import Measured, keep, of_peers, of_run, page, plot, read

RUN = {
    "ready": {"seconds": 2.0},
    "s1": {"decode tok/s": 50.0, "TTFT ms": 80.0},
    "start": {"seconds": 3.5},
    "memory": {"idle": 200.0},
    "s5": {"output tok/s": 400.0},
}
MACHINE = {"processor": "One", "instruction sets": "avx2", "cores": "2", "commit": "abc1234"}


def measured(**changes):
    fields = {"version": "0.1.0", "commit": "a", "date": "2026-01-01", "processor": "One", "cores": "2", "model": "M"}
    return Measured(**(fields | {"figures": {"s1 decode tok/s": 10.0}} | changes))


def test_a_measurement_of_the_same_commit_and_machine_is_replaced(tmp_path):
    path = tmp_path / "history.jsonl"
    keep(measured(), path)
    keep(measured(version="0.2.0", date="2026-03-01"), path)
    keep(measured(commit="b", date="2026-02-01"), path)
    keep(measured(figures={"s1 decode tok/s": 11.0}), path)
    assert [row.commit for row in read(path)] == ["a", "b", "a"]
    assert read(path)[0].figures == {"s1 decode tok/s": 11.0} and len(path.read_bytes().splitlines()) == 3


def test_a_line_of_another_form_is_refused(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps({"version": "0.1.0", "speed": 3}))
    with pytest.raises(msgspec.ValidationError, match="speed"):
        read(path)


def test_a_run_gives_its_scenarios_and_its_start():
    row = of_run(RUN, "0.2.0", MACHINE, "2026-01-01")
    assert row.figures == {"s1 decode tok/s": 50.0, "s1 TTFT ms": 80.0, "s5 output tok/s": 400.0, "s6 start s": 3.5}
    assert row.what == ("0.2.0", "abc1234", "One (avx2), 2 cores, the embedded model")


def test_a_comparison_with_peers_gives_the_medians_of_ours():
    rows = {"core bf16": [{"decode tok/s": 5.0}, {"decode tok/s": 7.0}, {"decode tok/s": 9.0}], "vLLM bf16": []}
    block = {"date": "2026-01-02T03:04", "state": "bad", "rows": rows}
    data = {
        "model": "M",
        "machine": MACHINE,
        "engines": {"core bf16": {"version": "0.1.0"}},
        "blocks": {"s1": block, "s7": block | {"rows": {}}},
    }
    row = of_peers(data)
    assert (row.figures, row.state, row.date) == ({"s1 decode tok/s": 7.0}, "bad", "2026-01-02")


def test_machines_have_a_table_and_a_line_each():
    rows = [measured(), measured(commit="b", figures={"s1 decode tok/s": 12.0}), measured(processor="Two")]
    text = page(rows)
    assert text.count("\n## ") == 2 and "| 0.1.0 | `b` | 2026-01-01 | – | 12 |" in text
    assert plot(rows).count("<polyline") == 2


def test_page_and_plot_are_those_of_the_lines():
    rows = read()
    assert rows and history.PAGE.read_text() == page(rows) and history.PLOT.read_text() == plot(rows)
