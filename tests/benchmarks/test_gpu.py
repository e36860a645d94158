"""`benchmarks.gpu` where there is no GPU, and its table."""

import sys

import pytest

from benchmarks import gpu, gpu_rows, gpu_shapes


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 2
    assert "there is no GPU here" in capsys.readouterr().err


def test_the_table_shows_shares_goals_and_failures():
    figures = [
        {"row": "decode", "value": 243.3, "unit": "tokens/s", "share": 0.861, "goal": 0.85, "of": "copy rate"},
        {"row": "start", "value": 9.5, "unit": "s", "share": None, "goal": "≤ 12 s"},
        {"row": "qwen failed", "value": None, "unit": "out of memory"},
    ]
    assert gpu.table(figures).splitlines()[2:] == [
        "| decode | 243.3 | tokens/s | 86% of copy rate | ≥ 85% |",
        "| start | 9.5 | s |  | ≤ 12 s |",
        "| qwen failed |  | out of memory |  |  |",
    ]


def test_every_row_has_a_measurement():
    assert set(gpu.NAMES) == set(gpu_rows.ROWS)


@pytest.mark.parametrize(
    "name, least, most",
    [("Llama-3-8B", 14.9e9, 15.1e9), ("Qwen3-30B-A3B", 6.0e9, 6.2e9), ("gpt-oss-20b", 6.5e9, 7.5e9)],
)
def test_bytes_of_a_token(name, least, most):
    assert least < gpu_shapes.token_bytes(name) < most
