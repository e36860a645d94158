"""The loader of torch's files against torch, and pickles with code, of which nothing is run."""

import io
import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from core.api.errors import CheckpointError
from core.plugin.registry import PluginRegistry
from core_config.resolve import resolve
from core_loaders.npcache.loader import NpcacheLoader
from core_loaders.pt import manifest as pt_manifest
from core_loaders.pt.loader import PtLoader
from core_runtime.specs.checkpoint import FileFacts
from tests.torch_free import run_torch_free


@pytest.fixture
def directory(tiny_llama: Path, tmp_path: Path) -> Path:
    """The tiny model as one file of torch."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(tiny_llama / "model.safetensors"), folder / "pytorch_model.bin")
    return folder


def save(directory: Path, content: object, **options: object) -> None:
    torch.save(content, directory / "pytorch_model.bin", **options)


def read(directory: Path, loader: PtLoader | NpcacheLoader | None = None) -> dict[str, torch.Tensor]:
    loader = loader or PtLoader()
    manifest = loader.resolve(str(directory))
    found = {}
    for name, tensor in loader.iter(manifest, list(manifest.tensors)):
        info = manifest.tensors[name]
        assert tuple(tensor.shape) == info.shape and tensor.nbytes == info.nbytes
        found[name] = tensor.clone()
    return found


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype is tensor.dtype
        assert torch.equal(raw(found[name]), raw(tensor)), name


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().view(torch.uint8)


def test_tensors_equal_torch(directory: Path) -> None:
    expected = torch.load(directory / "pytorch_model.bin", weights_only=True)
    assert_equal(read(directory), expected)
    arguments = {"model": str(directory), "device": "cpu"}
    resolution = resolve(arguments, context="llm", registry=PluginRegistry(), environ={})
    assert resolution.engine.plugins.loader == "pt"


def test_shards_are_one_model(directory: Path) -> None:
    whole = torch.load(directory / "pytorch_model.bin", weights_only=True)
    names = list(whole)
    (directory / "pytorch_model.bin").unlink()
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save({name: whole[name] for name in part}, directory / file)
        weight_map |= dict.fromkeys(part, file)
    torch.save({"unrelated": torch.zeros(1)}, directory / "other.bin")
    index = directory / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert_equal(read(directory), whole)
    (directory / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00002\.bin: is missing"):
        read(directory)


TYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16,
]  # fmt: skip


@pytest.mark.parametrize("loader", [PtLoader, NpcacheLoader])
def test_types_strides_and_shared_storages(loader: type[PtLoader | NpcacheLoader], directory: Path) -> None:
    base = torch.randn(6, 8)
    content = {
        "whole": base,
        "tied": base,
        "turned": base.t(),
        "part": base[2:5, 1::3],
        "repeated": torch.arange(4.0).expand(3, 4),
        "scalar": torch.tensor(2.5),
        "none": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.randn(3)),
    }
    for dtype in TYPES:
        content[str(dtype)] = torch.randn(2, 3).mul(4).abs().to(dtype)
    save(directory, content)
    expected = {name: tensor.detach().clone() for name, tensor in content.items()}
    for _ in range(2):  # the second time from the cache, where there is one
        assert_equal(read(directory, loader()), expected)


class Payload:
    """A pickle of it runs a command."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> object:
        return os.system, (self._command,)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("loader", [PtLoader, NpcacheLoader])
def test_code_in_a_pickle_is_never_run(
    legacy: bool, loader: type[PtLoader | NpcacheLoader], directory: Path, tmp_path: Path
) -> None:
    touched = tmp_path / "touched"
    payload = Payload(f"touch {touched}")
    save(directory, {"weight": torch.zeros(1), "code": payload}, _use_new_zipfile_serialization=not legacy)
    reason = "no file of torch 1.6 or later" if legacy else r"import 'posix\.system'.*Nothing of it was run"
    with pytest.raises(CheckpointError, match=reason):
        loader().resolve(str(directory))
    assert not touched.exists()
    with open(directory / "pytorch_model.bin", "wb") as file:
        pickle.dump(payload, file)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        loader().resolve(str(directory))
    assert not touched.exists()


def with_pickle(path: Path, data: bytes, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        for name, content in members.items():
            archive.writestr(f"archive/data/{name}", content)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"cos\nsystem\n(S'touch x'\ntR.", "import 'os.system'"),
        (b"(S'touch x'\nios\nsystem\n.", "instruction STRING"),
        (b"\x80\x02\x82\x01.", "instruction EXT1"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "instruction NEWOBJ"),
        (b"\x80\x02ctorch\nFloatStorage\n(X\x01\x00\x00\x00at}b.", "no dictionary of tensors"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "no tensors|dictionary|''"),
        (b"\x80\x02\x85.", "damaged"),
        (b"\x80\x02}", "damaged"),
        (b"", "damaged"),
        (b"\x80\x02}X\x01\x00\x00\x00aK\x01s.", "'a' is no tensor"),
    ],
)
def test_other_pickles_are_sentences(data: bytes, reason: str, directory: Path) -> None:
    with_pickle(directory / "pytorch_model.bin", data)
    if data == b"\x80\x02}r\xff\xff\xff\x7f.":  # a memo of two billion places takes no memory
        assert PtLoader().resolve(str(directory)).tensors == {}
        return
    with pytest.raises(CheckpointError, match=reason):
        PtLoader().resolve(str(directory))


def rewritten(path: Path, **changes: bytes | None) -> None:
    """The zip file with other members; None leaves one out."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            changed = changes.get(name.rpartition("/")[2], content)
            if changed is not None:
                archive.writestr(name, changed)


def test_damage_is_a_sentence(directory: Path) -> None:
    path = directory / "pytorch_model.bin"
    save(directory, {"a": torch.arange(100.0)})
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole[:-30], b"PK\x03\x04" + b"\xff" * 100):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
            PtLoader().resolve(str(directory))
    for changes, reason in (
        ({"0": b"1234"}, "tensor 'a' .* ends at byte 400 of a storage of 4"),
        ({"0": None}, "values of tensor 'a' are missing"),
        ({"byteorder": b"big"}, "another order of bytes"),
        ({"data.pkl": None}, "no data.pkl"),
    ):
        path.write_bytes(whole)
        rewritten(path, **changes)
        with pytest.raises(CheckpointError, match=reason):
            PtLoader().resolve(str(directory))
    path.write_bytes(whole)
    manifest = PtLoader().resolve(str(directory))
    save(directory, {"a": torch.arange(5.0)})
    with pytest.raises(CheckpointError, match="'a' is not as it was"):
        list(PtLoader().iter(manifest, ["a"]))


def test_compressed_members_are_refused(directory: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}." + b"\0" * 1000)
    (directory / "pytorch_model.bin").write_bytes(buffer.getvalue())
    with pytest.raises(CheckpointError, match="compressed"):
        PtLoader().resolve(str(directory))


def test_files_of_training_are_no_weights(directory: Path) -> None:
    expected = read(directory)
    torch.save(Payload("true"), directory / "training_args.bin")
    torch.save({"state": 1}, directory / "optimizer.pt")
    assert_equal(read(directory), expected)
    (directory / "pytorch_model.bin").rename(directory / "model.pt")
    assert_equal(read(directory), expected)


def test_resolve_imports_no_torch(directory: Path) -> None:
    run_torch_free(
        f"from core_loaders.npcache.loader import NpcacheLoader as Loader; Loader().resolve({str(directory)!r})"
    )


def test_claims() -> None:
    def claim(*names: str) -> str | None:
        return pt_manifest.core_claim(FileFacts("m", "/m", True, names))

    assert claim("config.json", "pytorch_model.bin") and claim("config.json", "model.pth")
    assert not claim("config.json", "pytorch_model.bin", "model.safetensors")
    assert not claim("pytorch_model.bin") and not claim("config.json")


def test_the_cache_is_written_once_and_again_for_other_weights(directory: Path) -> None:
    loader = NpcacheLoader()
    assert not (directory / "np").exists()
    first = read(directory, loader)
    index = directory / "np" / "weights.json"
    written = index.stat().st_mtime_ns
    assert_equal(read(directory, loader), first)
    assert index.stat().st_mtime_ns == written
    other = {name: tensor + 1 for name, tensor in first.items()}
    save(directory, other)
    assert_equal(read(directory, loader), other)
    assert not list(directory.glob("np-*"))


def test_a_folder_that_is_no_cache_stays(directory: Path) -> None:
    folder = directory / "np"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="in the way"):
        read(directory, NpcacheLoader())
    assert (folder / "mine.txt").exists()


def test_damage_of_the_cache_is_a_sentence(directory: Path) -> None:
    read(directory, NpcacheLoader())
    victim = directory / "np" / "00003.npy"
    for content in (b"", victim.read_bytes()[:100], b"\x80\x04" + pickle.dumps({})):
        victim.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"00003\.npy.*Remove the folder"):
            read(directory, NpcacheLoader())
