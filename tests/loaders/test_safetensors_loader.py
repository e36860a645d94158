"""The safetensors loader against the safetensors library, on checkpoints that transformers wrote."""

import json
import shutil
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from core.api.errors import CheckpointError
from core_loaders import prefetch
from core_loaders.safetensors import manifest as safetensors_manifest
from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.specs.checkpoint import FileFacts
from tests.torch_free import run_torch_free


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


def rewritten(path: Path, **places: list[int]) -> None:
    """Write the file again with other places of tensors."""
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    for name, place in places.items():
        header[name]["data_offsets"] = place
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + whole[8 + length :])


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        ({"b": [0, 16]}, "'b' overlaps tensor 'a'"),
        ({"a": [0, 8], "b": [16, 32]}, "'a' of shape"),
        ({"a": [16, 32], "b": [16, 32]}, "'a' leaves a gap behind the header"),
    ],
)
def test_places_that_lie_are_refused(places: dict[str, list[int]], reason: str, copy: Path) -> None:
    path = copy / "model.safetensors"
    save_file({"a": torch.arange(4.0), "b": torch.arange(4.0)}, path)
    rewritten(path, **places)
    with pytest.raises(CheckpointError, match=reason):
        SafetensorsLoader().resolve(str(copy))


def test_bytes_behind_the_last_tensor_are_refused(copy: Path) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(CheckpointError, match="4 bytes follow"):
        SafetensorsLoader().resolve(str(copy))


def test_an_index_that_lies_is_refused(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["no.such.tensor"] = next(iter(index["weight_map"].values()))
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"index\.json.*no\.such\.tensor"):
        SafetensorsLoader().resolve(str(sharded))


def test_consolidated_copies_are_not_read_twice(copy: Path) -> None:
    loader = SafetensorsLoader()
    names = set(loader.resolve(str(copy)).tensors)
    save_file({"layers.0.attention.wq.weight": torch.zeros(64)}, copy / "consolidated.safetensors")
    assert set(loader.resolve(str(copy)).tensors) == names


def test_links_stay_in_the_directory_or_the_cache_of_the_hub(copy: Path, tmp_path: Path) -> None:
    loader = SafetensorsLoader()
    weights = copy / "model.safetensors"
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs = tmp_path / "models--a--b" / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    for path in copy.iterdir():
        shutil.copy(path, blobs)
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    assert loader.resolve(str(snapshot)).tensors == loader.resolve(str(copy)).tensors
    elsewhere = shutil.move(weights, tmp_path / "elsewhere")
    weights.symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is a link to .*elsewhere"):
        loader.resolve(str(copy))


@pytest.mark.parametrize("strategy", ["lazy", "eager", "prefetch"])
def test_every_strategy_reads_the_same(strategy: str, sharded: Path) -> None:
    expected = SafetensorsLoader()
    loader = SafetensorsLoader(strategy)
    manifest = loader.resolve(str(sharded))
    pairs = zip(
        loader.iter(manifest, list(manifest.tensors)), expected.iter(manifest, list(manifest.tensors)), strict=True
    )
    for (name, tensor), (expected_name, expected_tensor) in pairs:
        assert name == expected_name and torch.equal(tensor, expected_tensor)
    assert all(thread.name != "prefetch-weights" for thread in threading.enumerate())


def test_files_on_a_network_are_read_ahead(monkeypatch: pytest.MonkeyPatch, copy: Path, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(prefetch, "MOUNTS", mounts)
    weights = [str(copy / "model.safetensors")]
    mounts.write_text("/dev/vda / ext4 rw 0 0\n")
    assert not prefetch.wants_prefetch(weights)
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/models {copy} nfs4 rw 0 0\n")
    assert prefetch.wants_prefetch(weights)


def test_a_file_that_shrank_is_a_sentence(copy: Path) -> None:
    loader = SafetensorsLoader()
    manifest = loader.resolve(str(copy))
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor .* changed meanwhile"):
        list(loader.iter(manifest, list(manifest.tensors)))


def test_resolve_imports_no_torch(tiny_llama: Path) -> None:
    run_torch_free(
        f"from core_loaders.safetensors.loader import SafetensorsLoader as Loader; Loader().resolve({str(tiny_llama)!r})"
    )


def test_claims() -> None:
    def claim(*names: str) -> str | None:
        return safetensors_manifest.core_claim(FileFacts("m", "/m", True, names))

    assert claim("config.json", "model.safetensors")
    assert claim("config.json", "model.safetensors.index.json")
    assert not claim("config.json") and not claim("model.safetensors")
