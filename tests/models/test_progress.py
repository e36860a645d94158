"""Progress of loading, in bytes."""

import logging
import sys
from pathlib import Path

import pytest

from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.models.tensors import progress
from core_runtime.models.tensors.progress import LoadingBar, loading_bar


def test_the_bar_counts_bytes_and_tells_their_rate(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = SafetensorsLoader().resolve(str(tiny_llama))
    with loading_bar(manifest, manifest.tensors, shown=True) as bar:
        bar.update(1)
    assert capsys.readouterr().err == "", "a log file has no place for a bar"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with loading_bar(manifest, manifest.tensors, shown=True) as bar:
        for info in manifest.tensors.values():
            bar.update(info.nbytes)
        assert bar.n == bar.total == sum(info.nbytes for info in manifest.tensors.values())
        bar.refresh()
    shown = capsys.readouterr().err
    assert "B/s" in shown and "100%" in shown


def test_a_long_loading_is_lines_of_bytes_and_seconds_in_a_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    caplog.set_level(logging.INFO, logger=progress.logger.name)
    with LoadingBar(5_000_000_000, shown=True) as bar:
        bar.update(2_000_000_000)
        bar.update(3_000_000_000)
    first, second, last = (record.message for record in caplog.records)
    assert first.startswith("Loading weights: 2.0 of 5.0 GB in ")
    assert second.startswith("Loading weights: 5.0 of 5.0 GB in ")
    assert last.startswith("Loaded 5.0 GB of weights in ") and last.endswith(" GB/s")


def test_a_short_or_hidden_loading_has_no_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger=progress.logger.name)
    with LoadingBar(10, shown=True) as bar:
        bar.update(10)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with LoadingBar(10, shown=False) as bar:
        bar.update(10)
    assert not caplog.records
