"""runai_streamer, fastsafetensors and tensorizer, through the real libraries: the same tensors as the files hold."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.api.config import ResolvedPlugin
from core.api.errors import CheckpointError, PluginError, UserError
from core.plugin.hookspecs import LoadContext
from core.plugin.manifest import load_manifest
from core.plugin.table import load_plugin
from core_loaders.tensorizer.index import read_index
from core_runtime.specs.checkpoint import FileFacts
from tests.loaders.same_tensors import check_same
from tests.torch_free import run_torch_free

LIBRARIES = {"runai_streamer": "runai_model_streamer", "fastsafetensors": "fastsafetensors", "tensorizer": "tensorizer"}
OPTIONS = {
    "runai_streamer": {"concurrency": 2, "memory_limit": 200_000},
    "fastsafetensors": {"max_threads": 2, "bbuf_size_kb": 64},
    "tensorizer": {"num_readers": 2, "verify_hash": True},
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn)


@pytest.fixture(scope="module")
def model(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of several dtypes, one of them with tensors that lie at odd addresses."""
    directory = tmp_path_factory.mktemp("mixed")
    tensors = load_file(tiny_llama / "model.safetensors")
    weights = {}
    for number in range(2):
        part = {}
        for place, name in enumerate(sorted(tensors)[number::2]):
            part[name] = tensors[name].to(DTYPES[place % len(DTYPES)])
        part[f"odd.{number}"] = torch.arange(3, dtype=torch.uint8)
        part[f"zscalar.{number}"] = torch.tensor(2.5)
        file = f"model-{number}.safetensors"
        save_file(part, directory / file)
        weights |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    for name in ("config.json", "tokenizer.json"):
        (directory / name).write_bytes((tiny_llama / name).read_bytes())
    return directory


@pytest.fixture
def serialized(model: Path) -> Path:
    """The same beside it, as tensorizer writes it."""
    path = model / "model.tensors"
    if not path.exists():
        serializer = pytest.importorskip("tensorizer").TensorSerializer(str(path))
        whole = load_file(model / "model-0.safetensors") | load_file(model / "model-1.safetensors")
        serializer.write_state_dict(whole)
        serializer.close()
    return path


def loader_of(name: str, arguments: dict[str, object]):
    """As the engine loads it."""
    return load_plugin(manifest_of(name), LoadContext(arguments=arguments))


def manifest_of(name: str):
    target = f"core_loaders.{name}.manifest"
    return load_manifest(ResolvedPlugin(kind="loader", name=name, target=target))


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("options", [False, True])
def test_the_same_tensors_as_safetensors(name, options, model, request):
    pytest.importorskip(LIBRARIES[name])
    if name == "tensorizer":
        request.getfixturevalue("serialized")
    loader = loader_of(name, OPTIONS[name] if options else {})
    check_same(loader, loader.resolve(str(model)), model)
    assert not {"RUNAI_STREAMER_CONCURRENCY", "RUNAI_STREAMER_MEMORY_LIMIT"} & os.environ.keys()


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_is_missing_is_told_with_its_extra(name, model, monkeypatch):
    monkeypatch.setitem(sys.modules, LIBRARIES[name], None)
    extra = name.replace("_", "-")
    with pytest.raises(UserError, match=rf"--load-format {name}: needs .*pip install 'core-engine-loaders\[{extra}\]'"):
        loader_of(name, {}).resolve(str(model))


@pytest.mark.parametrize("name", LIBRARIES)
def test_it_is_never_taken_unasked_and_knows_its_arguments(name, model):
    manifest = manifest_of(name)
    names = ("config.json", "model.safetensors", "model.tensors")
    assert manifest.call("core_claim", facts=FileFacts(str(model), str(model), True, names)) is None
    with pytest.raises(PluginError, match="device: unknown key; known: "):
        loader_of(name, {"device": "cuda"})


@pytest.mark.parametrize("name", LIBRARIES)
def test_resolving_imports_no_torch(name, model, request):
    pytest.importorskip(LIBRARIES[name])
    if name == "tensorizer":
        request.getfixturevalue("serialized")
    kind = {"runai_streamer": "RunaiStreamer", "fastsafetensors": "FastSafetensors", "tensorizer": "Tensorizer"}[name]
    arguments = {"runai_streamer": "Streamer", "fastsafetensors": "Fast", "tensorizer": "Tensorizer"}[name]
    code = (
        f"from core_loaders.{name} import loader, manifest\n"
        f"found = loader.{kind}Loader(manifest.{arguments}Arguments()).resolve(sys.argv[1])\n"
        "assert found.tensors"
    )
    run_torch_free(code, str(model))


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_file_that_is_cut_after_its_header_is_a_sentence(name, model, serialized, tmp_path):
    pytest.importorskip(LIBRARIES[name])
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    loader = loader_of(name, {})
    manifest = loader.resolve(str(tmp_path))
    for file in manifest.files:
        whole = Path(file).read_bytes()
        Path(file).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"cannot be read"):
        list(loader.iter(manifest, list(manifest.tensors)))
    with pytest.raises(CheckpointError, match="incomplete"):
        loader.resolve(str(tmp_path))


def test_a_wrong_byte_is_found_by_its_hash(serialized, model, tmp_path):
    loader = loader_of("tensorizer", {"tensorizer_uri": str(tmp_path / "x"), "verify_hash": True})
    content = bytearray(serialized.read_bytes())
    place = max(info.offset for info in read_index(serialized).values())
    content[place] ^= 1
    (tmp_path / "x").write_bytes(content)
    manifest = loader.resolve(str(model))
    with pytest.raises(CheckpointError, match=r"cannot be read.*HashMismatchError"):
        list(loader.iter(manifest, list(manifest.tensors)))


def test_an_index_that_lies_is_a_sentence(serialized, tmp_path):
    """Every cut of the index, and every one of its bytes changed, is read, or refused in a sentence."""
    content = serialized.read_bytes()
    end = 73 + 60 * len(read_index(serialized))  # the index is longer, but only zeros are left
    path = tmp_path / "damaged"
    for cut in range(5, end, 97):
        path.write_bytes(content[:cut])
        with pytest.raises(CheckpointError, match=r"damaged|incomplete|complete\?"):
            read_index(path)
    refused = 0
    places = range(0, end, 37)
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            read_index(path)
        except CheckpointError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > len(places) // 2


def test_the_file_of_tensorizer_must_be_one(model, tmp_path):
    pytest.importorskip("tensorizer")
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"expected one \*.tensors file beside config.json, found none"):
        loader_of("tensorizer", {}).resolve(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"s3://b/x: expected a path"):
        loader_of("tensorizer", {"tensorizer_uri": "s3://b/x"}).resolve(str(tmp_path))
