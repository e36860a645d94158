"""The report and the plot, from figures that were made up."""

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.peer.checkpoints import Shape
from benchmarks.peer.limits import state
from benchmarks.peer.plot import bars, svg
from benchmarks.peer.report import number, ratio_table, render, table
from benchmarks.peer.results import Results
from benchmarks.peer.targets import TARGETS, Target, limit_shares

SMOLLM2 = Shape(hidden=576, intermediate=1536, layers=30, heads=9, kv_heads=3, head_size=64, vocabulary=49152)
LIMITS = {"read 85 MB": 130.0, "read 270 MB": 80.0, "bf16 matmul": 800.0, "int8 matmul": 1900.0}


@pytest.fixture
def results(tmp_path):
    made = Results(tmp_path / "figures.json")
    common = {"date": "2026-11-21", "quick": False, "repeats": 1, "before": LIMITS, "after": LIMITS, "state": "good"}
    made.data["machine"] = {"processor": "a processor"}
    made.data["engines"] = {
        "core bf16": {"version": "0.1", "import_seconds": 1.0, "load_seconds": 0.5, "command": "run --me"}
    }
    made.blocks["s1"] = common | {
        "rows": {
            "core bf16": [{"decode tok/s": 200.0, "TTFT ms": 40.0}],
            "vLLM bf16": [{"decode tok/s": 50.0, "TTFT ms": 45.0}],
            "llama.cpp bf16": [{"decode tok/s": 160.0, "TTFT ms": 100.0}],
            "OpenVINO fp16": [],
        },
        "failures": {"OpenVINO fp16": "no | conversion"},
        "outputs": {"core bf16": {"mean logprob": -0.5, "sense": True, "tokens": 64, "equal first tokens": 64}},
    }
    made.blocks["s4"] = common | {
        "rows": {"core bf16": [{"seconds": 2.0}], "vLLM bf16": [{"seconds": 4.0}]},
        "failures": {},
    }
    return made


def line(text, *words):
    return next(row for row in text.splitlines() if all(word in row for word in words))


def test_ratios_stand_beside_their_targets(results):
    text = ratio_table(results)
    assert "4.00×" in line(text, "core bf16 / vLLM bf16", "decode") and "| met |" in line(text, "vLLM bf16", "decode")
    assert "1.25×" in line(text, "llama.cpp bf16", "decode") and "missed" in line(text, "llama.cpp bf16", "decode")
    assert "not measured" in line(text, "OpenVINO fp16", "decode")
    assert "0.50×" in line(text, "S4", "vLLM bf16") and "≤ 0.69×" in line(text, "S4", "vLLM bf16")
    assert "| met |" in line(text, "S4", "vLLM bf16")


def test_the_page_shows_figures_failures_and_the_machine(results):
    page = render(results, limit_shares(results, SMOLLM2), "performance.svg")
    assert "| vLLM bf16 | 50.0 | 45.0 |" in page
    assert "failed: no \\| conversion" in page  # a bar would end the cell
    assert "a processor" in page and "(performance.svg)" in page and "state good" in page
    assert "64 of 64" in page
    assert "# core bf16, offline\nrun --me\n```" in page


def test_every_row_of_a_table_has_the_same_number_of_cells():
    rows = table(["a", "b"], [["1", "2"], ["x | y", "two\nlines"]]).splitlines()
    assert len(rows) == 4
    assert {row.replace("\\|", "").count("|") for row in rows} == {3}


def test_limits_of_smollm2_are_those_of_its_file():
    assert SMOLLM2.step_bytes == pytest.approx(269e6, rel=0.001)  # bytes of its bf16 tensors
    assert SMOLLM2.kv_bytes == 23_040
    # attention counted by brute force: every query with every key up to its own, two products of a head's width
    pairs = sum(position + 1 for position in range(100))
    attention = pairs * 2 * 2 * 9 * 64 * 30
    assert SMOLLM2.prefill_flops(100) == 2 * 100 * SMOLLM2.block_parameters + attention + 2 * 49152 * 576


def test_shares_of_the_limits(results):
    share = next(share for share in limit_shares(results, SMOLLM2) if share.what.startswith("S1"))
    assert share.share == pytest.approx(200 * 0.269 / 80, rel=0.001)


def test_a_lower_figure_is_drawn_as_the_longer_bar(results):
    by_label = {bar.label: bar for bar in bars(results, TARGETS)}
    assert by_label["S4 seconds: bf16 / vLLM bf16"].advantage == 2.0
    assert by_label["S4 seconds: bf16 / vLLM bf16"].wanted == pytest.approx(1.45)
    assert by_label["S1 decode tok/s: bf16 / vLLM bf16"].advantage == 4.0
    assert not any("OpenVINO" in label for label in by_label)


def test_the_picture_is_valid_and_has_a_bar_each(results):
    found = bars(results, TARGETS)
    root = ElementTree.fromstring(svg(found))
    shapes = [element for element in root.iter() if element.tag.endswith("rect")]
    assert len(shapes) == len(found) + 1  # and the background
    width = float(root.get("width"))
    assert all(float(s.get("x", 0)) >= 0 and float(s.get("x", 0)) + float(s.get("width")) <= width for s in shapes)


def test_the_picture_of_nothing_is_valid():
    assert ElementTree.fromstring(svg([])) is not None


def test_targets_that_must_be_low_are_met_from_below():
    low = Target("s4", "seconds", "core bf16", "vLLM bf16", 0.5, at_most=True)
    assert low.met(0.5) and low.met(0.1) and not low.met(0.6)
    high = Target("s1", "decode tok/s", "core bf16", "vLLM bf16", 2.4)
    assert high.met(2.4) and not high.met(2.3)


@pytest.mark.parametrize(("before", "after", "word"), [(80, 70, "good"), (80, 40, "mixed"), (40, 45, "bad")])
def test_the_state_needs_both_measurements(before, after, word):
    assert state({"read 270 MB": before}, {"read 270 MB": after}, good=60.0) == word


@pytest.mark.parametrize(
    ("value", "shown"), [(12345.6, "12,346"), (123.45, "123"), (12.345, "12.3"), (1.2345, "1.23"), (0.034, "0.03")]
)
def test_numbers_are_short(value, shown):
    assert number(value) == shown
