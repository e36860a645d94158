"""The safetensors loader against the safetensors library, on checkpoints that transformers wrote."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from core.api.checkpoint import FileFacts
from core.api.errors import CheckpointError
from core_plugins.loaders.safetensors import manifest as safetensors_manifest
from core_plugins.loaders.safetensors.loader import SafetensorsLoader


@pytest.fixture
def copy(tiny_llama: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_llama, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def sharded(tiny_llama: Path, tmp_path: Path) -> Path:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    return tmp_path / "sharded"


def test_tensors_equal_the_library(tiny_llama: Path) -> None:
    loader = SafetensorsLoader()
    manifest = loader.resolve(str(tiny_llama))
    expected = load_file(tiny_llama / "model.safetensors")
    assert {name: info.shape for name, info in manifest.tensors.items()} == {
        n: tuple(t.shape) for n, t in expected.items()
    }
    got = {name: tensor.clone() for name, tensor in loader.iter(manifest, list(expected))}
    assert all(torch.equal(got[name], expected[name]) for name in expected)
    assert manifest.config["model_type"] == "llama" and manifest.tokenizer.directory == str(tiny_llama)
    assert manifest.generation["eos_token_id"] == 2


def test_sharded_files_are_one_model(tiny_llama: Path, sharded: Path) -> None:
    loader = SafetensorsLoader()
    manifest = loader.resolve(str(sharded))
    assert len(manifest.files) > 1
    expected = load_file(tiny_llama / "model.safetensors")
    got = {name: tensor.clone() for name, tensor in loader.iter(manifest, list(expected))}
    assert all(torch.equal(got[name], expected[name]) for name in expected)
    Path(manifest.files[1]).unlink()
    with pytest.raises(CheckpointError, match=Path(manifest.files[1]).name):
        loader.resolve(str(sharded))


def test_a_name_in_two_files_is_refused(copy: Path) -> None:
    save_file({"model.norm.weight": torch.zeros(64)}, copy / "more.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*also in"):
        SafetensorsLoader().resolve(str(copy))


def test_incomplete_directories_end_in_sentences(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        SafetensorsLoader().resolve(str(tmp_path / "empty"))
    with pytest.raises(CheckpointError, match="no such directory"):
        SafetensorsLoader().resolve(str(tmp_path / "nowhere"))
    (copy / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no \.safetensors file"):
        SafetensorsLoader().resolve(str(copy))
    (copy / "config.json").write_text("[1")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        SafetensorsLoader().resolve(str(copy))
    (copy / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="model_type"):
        SafetensorsLoader().resolve(str(copy))


def test_the_metadata_of_all_files_is_handed_on(copy: Path) -> None:
    save_file({"extra": torch.zeros(1)}, copy / "other.safetensors", metadata={"extra": "a word"})
    assert SafetensorsLoader().resolve(str(copy)).metadata == {"format": "pt", "extra": "a word"}


def test_damaged_headers_are_refused(copy: Path) -> None:
    path = copy / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    name = next(key for key in header if key != "__metadata__")
    changed = []
    for fields in (
        {"shape": [1 << 40]},
        {"dtype": "F3"},
        {"data_offsets": [0, 1 << 50]},
        {"shape": "x"},
        {"shape": [-1]},
    ):
        raw = json.dumps({**header, name: {**header[name], **fields}}).encode()
        changed.append(len(raw).to_bytes(8, "little") + raw + whole[8 + length :])
    for metadata in (["pt"], {"format": 1}):
        raw = json.dumps({**header, "__metadata__": metadata}).encode()
        changed.append(len(raw).to_bytes(8, "little") + raw + whole[8 + length :])
    for content in (b"", whole[:100], whole[:-50], b"\xff" * 8 + whole[8:], whole[:8] + b"[" + whole[9:], *changed):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            SafetensorsLoader().resolve(str(copy))


def test_resolve_imports_no_torch(tiny_llama: Path) -> None:
    script = (
        "import sys; from core_plugins.loaders.safetensors.loader import SafetensorsLoader;"
        f"SafetensorsLoader().resolve({str(tiny_llama)!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, cwd=Path(__file__).parents[2])


def test_claims() -> None:
    def claim(*names: str) -> str | None:
        return safetensors_manifest.core_claim(FileFacts("m", "/m", True, names))

    assert claim("config.json", "model.safetensors")
    assert claim("config.json", "model.safetensors.index.json")
    assert not claim("config.json") and not claim("model.safetensors")
