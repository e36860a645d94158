"""Medians, ratios and resuming of the peer comparison, on figures that were made up."""

import json

import pytest

from benchmarks.peer.results import Results

LIMITS = {"read 85 MB": 130.0, "read 270 MB": 80.0, "bf16 matmul": 800.0, "int8 matmul": 1900.0}


def block(rows, failures=None, quick=False):
    kept = {"rows": rows, "failures": failures or {}, "before": LIMITS, "after": LIMITS}
    return kept | {"date": "2026-11-21", "quick": quick, "repeats": 3, "state": "good"}


@pytest.fixture
def results(tmp_path):
    made = Results(tmp_path / "figures.json")
    made.blocks["s1"] = block(
        {
            "core bf16": [{"decode tok/s": 200.0}, {"decode tok/s": 100.0}, {"decode tok/s": 260.0}],
            "vLLM bf16": [{"decode tok/s": 100.0}, {"decode tok/s": 40.0}, {"decode tok/s": 104.0}],
            "OpenVINO fp16": [],
        },
        failures={"OpenVINO fp16": "no conversion"},
    )
    made.blocks["s3"] = block({"core W8A8": [{"output tok/s": 2000.0}]})
    return made


def test_medians_leave_out_who_failed(results):
    assert results.medians("s1") == {"core bf16": {"decode tok/s": 200.0}, "vLLM bf16": {"decode tok/s": 100.0}}
    assert results.medians("s4") == {}


def test_a_ratio_pairs_repetitions_that_ran_side_by_side(results):
    # 2.0, 2.5 and 2.5 side by side; the medians alone would say 2.0
    assert results.ratio(("s1", "core bf16"), ("s1", "vLLM bf16"), "decode tok/s") == 2.5


def test_a_ratio_with_something_not_measured_is_none(results):
    assert results.ratio(("s1", "core bf16"), ("s1", "OpenVINO fp16"), "decode tok/s") is None
    assert results.ratio(("s1", "core bf16"), ("s1", "vLLM bf16"), "TTFT ms") is None
    assert results.ratio(("s2", "core bf16"), ("s2", "vLLM bf16"), "prompt tok/s") is None


def test_a_ratio_by_zero_is_none(results):
    results.blocks["s5-poisson"] = block({"core bf16": [{"goodput": 3.0}], "llama.cpp bf16": [{"goodput": 0.0}]})
    assert results.ratio(("s5-poisson", "core bf16"), ("s5-poisson", "llama.cpp bf16"), "goodput") is None


def test_the_file_is_continued_or_forgotten(results):
    results.save()
    assert Results(results.path).blocks == results.blocks
    assert Results(results.path, fresh=True).blocks == {}
    assert json.loads(results.path.read_text())["blocks"]["s3"]["state"] == "good"


def test_resuming_knows_what_is_missing(results):
    assert results.is_complete("s1", ["core bf16", "OpenVINO fp16"], quick=False)  # a failure is an answer too
    assert not results.is_complete("s1", ["core bf16", "transformers bf16"], quick=False)
    assert not results.is_complete("s1", ["core bf16"], quick=True)
    assert not results.is_complete("s2", ["core bf16"], quick=False)
