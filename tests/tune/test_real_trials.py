"""`core tune` with servers of a tiny model: the whole way, beside one another and one at a time."""

import json

import pytest

from core.commands.main import main
from core_commands.tune import trials
from core_commands.tune import tune as tuning
from tests.tiny_models import save_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("side_by_side, argument", [(True, "kv_cache_dtype"), (False, "async_scheduling")])
def test_real_servers_are_tried(side_by_side, argument, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tuning, "fits_twice", lambda plan: side_by_side)
    monkeypatch.setattr(trials, "LEAST_BLOCKS", 1)
    monkeypatch.setattr(trials, "MOST_BLOCKS", 1)
    save_checkpoint(tmp_path / "model")
    words = [
        str(tmp_path / "model"),
        "--only",
        argument,
        "--minutes",
        "60",
        "--num-prompts",
        "4",
        "--least-effect",
        "100",
    ]
    load = ["--random-input-len", "8", "--random-output-len", "6", "--max-concurrency", "2"]
    assert main(["tune", *words, *load, "--json", "-o", str(tmp_path / "tuned.yaml")]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = found["other_bits"] if side_by_side else found["effects"]
    assert len(rows) == (2 if side_by_side else 1), found["dropped"]
    for row in rows:
        assert row["argument"] == argument and row["effect"]["pairs"] == 2
        assert ("differ" in row.get("difference", "")) is side_by_side
    assert found["chosen"] == {}
    assert main(["config", "show", "--config", str(tmp_path / "tuned.yaml")]) == 0
