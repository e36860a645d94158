"""The comparison of `core tune` with a sweep: its grid has what is tried, and its ratio is one of scores."""

import argparse

from benchmarks import tune
from core_config.arguments.tunes import TUNABLES


def test_the_grid_has_the_values_that_are_tried():
    rows = {row.name: row for row in TUNABLES}
    for name, values in tune.GRID.items():
        tried = list(rows[name].values)
        tried += [round(48 * factor) for factor in rows[name].factors if factor <= 4]
        assert all(value in values for value in tried), name
    assert len(tune.combinations(tune.GRID)) == 4 * 3 * 2 * 2
    assert tune.combinations({"speculative_config": (None,)}) == [{}]


def test_the_ratio_is_that_of_scores_under_the_goal(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tune, "tuned", lambda load, options: {"async_scheduling": True})

    def swept(load, options, sets, folder):
        assert sets[-1] == {"async_scheduling": True}
        rows = []
        for number in range(len(sets)):
            result = {"output_throughput": 100.0 + number, "p90_ttft_ms": 500.0, "p90_itl_ms": 10.0}
            rows.append([result] * 3)
        rows[-2][0] = rows[-2][0] | {"output_throughput": 1e6}  # one run of three
        rows[1] = [{"output_throughput": 160.0, "p90_ttft_ms": 2000.0, "p90_itl_ms": 10.0}] * 3  # twice the goal
        return rows

    monkeypatch.setattr(tune, "swept", swept)
    options = argparse.Namespace(
        goal="ttft:1000,itl:50", passes=1, arguments=["async_scheduling", "speculative_config"]
    )
    assert tune.compare("chats", options, tmp_path) == 1.0
    assert "100.0% of the best of 6" in capsys.readouterr().out
