"""Progress of loading, in bytes."""

import sys
from pathlib import Path

import pytest

from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.models.tensors.progress import loading_bar


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
