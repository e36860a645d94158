"""`core save-sharded` and the loader of what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from core.api.checkpoint import FileFacts
from core.api.errors import CheckpointError, UserError
from core.cli.main import main
from core.config.resolve import resolve
from core.plugin.registry import PluginRegistry
from core_plugins.loaders.sharded_state import manifest as sharded_manifest
from core_plugins.loaders.sharded_state.loader import ShardedStateLoader
from tests.loaders.gguf_files import write_gguf


def read(directory: Path, pattern: str | None = None) -> dict[str, torch.Tensor]:
    loader = ShardedStateLoader() if pattern is None else ShardedStateLoader(pattern)
    manifest = loader.resolve(str(directory))
    return {name: tensor.clone() for name, tensor in loader.iter(manifest, list(manifest.tensors))}


def test_what_is_saved_is_loaded_to_the_bit(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "saved"
    assert main(["save-sharded", str(tiny_llama), str(out), "--max-file-size", "100k"]) == 0
    parts = sorted(out.glob("model-rank-0-part-*.safetensors"))
    assert len(parts) > 2 and f"in {len(parts)} files" in capsys.readouterr().out
    assert all(part.stat().st_size < 110_000 for part in parts)
    expected = load_file(tiny_llama / "model.safetensors")
    found = read(out)
    assert set(found) == set(expected) and all(torch.equal(found[name], expected[name]) for name in expected)
    by_the_library: dict[str, torch.Tensor] = {}
    for part in parts:
        by_the_library |= load_file(part)
    assert all(torch.equal(by_the_library[name], expected[name]) for name in expected)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (out / name).read_bytes() == (tiny_llama / name).read_bytes()
    resolution = resolve({"model": str(out), "device": "cpu"}, context="llm", registry=PluginRegistry(), environ={})
    assert resolution.engine.plugins.loader == "sharded_state"
    assert resolution.manifest.config["model_type"] == "llama"


def test_the_pattern_is_the_users(tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "saved"
    assert main(["save-sharded", str(tiny_llama), str(out), "--file-pattern", "w-{part}.safetensors"]) == 0
    assert (out / "w-0.safetensors").is_file()
    assert set(read(out, "w-{part}.safetensors")) == set(load_file(tiny_llama / "model.safetensors"))
    with pytest.raises(CheckpointError, match=r"no model-rank-0-part-0\.safetensors"):
        read(out)
    for pattern in ("w.safetensors", "../w-{part}.safetensors", "w-{part}-{node}.safetensors", "w-{part}.bin"):
        with pytest.raises(UserError, match="expected a file name with one"):
            ShardedStateLoader(pattern)


def test_what_is_incomplete_or_of_other_ranks_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "saved"
    assert main(["save-sharded", str(tiny_llama), str(out), "--max-file-size", "100k"]) == 0
    first = out / "model-rank-0-part-1.safetensors"
    first.rename(out / "model-rank-1-part-0.safetensors")
    with pytest.raises(CheckpointError, match="saved by ranks 0, 1"):
        read(out)
    (out / "model-rank-1-part-0.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-rank-0-part-1\.safetensors: is missing"):
        read(out)


def test_nothing_half_is_left(tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = write_gguf(tmp_path / "m.gguf")
    target = tmp_path / "out"
    assert main(["save-sharded", str(packed), str(target)]) == 2
    assert "packed type Q8_0" in capsys.readouterr().err
    assert main(["save-sharded", str(tiny_llama)]) == 2
    assert "core save-sharded MODEL OUT" in capsys.readouterr().err
    assert main(["save-sharded", str(tiny_llama), str(tiny_llama)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_claims() -> None:
    def claim(*names: str) -> str | None:
        return sharded_manifest.core_claim(FileFacts("m", "/m", True, names))

    assert claim("config.json", "model-rank-0-part-0.safetensors")
    assert not claim("config.json", "model.safetensors") and not claim("model-rank-0-part-0.safetensors")
