"""Checkpoints that lie: no name leads out of their directory, nothing of a pickle runs, and no claim takes memory."""

import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from core.api.errors import CheckpointError, UserError
from core.api.pooling import DenseModule
from core_config.pooled.sentence_files import sentence_files
from core_loaders.directory import read_directory
from core_loaders.index import read_index
from core_runtime.models.fallback.skeleton import check_code
from core_runtime.models.vector_head import dense_head
from core_tokens import checkpoint_files
from core_tokens.chat.templates import read_templates
from core_tokens.checkpoint_files import folder_inside, inside, read_file, read_json
from core_tokens.directory import read_tokenizer

ROOM = 512 << 20
"""Bytes of memory beside those of an idle interpreter with the reader."""
OUTSIDE = ["../outside", "1_Pooling/../../outside", "/etc", "..", "a\0b"]


def model(path: Path, **files: object) -> Path:
    """A directory with a configuration, and `files` in JSON."""
    path.mkdir(parents=True, exist_ok=True)
    for name, content in ({"config.json": {"model_type": "llama"}} | files).items():
        (path / name).write_text(json.dumps(content))
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder next to the checkpoint, with what a module needs."""
    folder = model(
        tmp_path / "outside", **{"config.json": {"pooling_mode": "cls", "in_features": 2, "out_features": 2}}
    )
    save_file({"linear.weight": torch.ones(2, 2), "linear.bias": torch.ones(2)}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_lead_out(tmp_path: Path, outside: Path, name: str) -> None:
    for find in (inside, folder_inside):
        with pytest.raises(CheckpointError, match="outside of it"):
            find(tmp_path / "model", name)


@pytest.mark.parametrize("kind", ["Pooling", "Dense", "Transformer", "Normalize"])
@pytest.mark.parametrize("name", ["../outside", "link"])
def test_modules_stay_in_the_checkpoint(tmp_path: Path, outside: Path, kind: str, name: str) -> None:
    path = model(
        tmp_path / "model", **{"modules.json": [{"type": f"sentence_transformers.models.{kind}", "path": name}]}
    )
    (path / "link").symlink_to(outside)
    with pytest.raises(CheckpointError, match=r"outside of it|out of the model's directory"):
        sentence_files(path)


def test_a_file_of_a_module_is_no_link_out(tmp_path: Path, outside: Path) -> None:
    path = model(tmp_path / "model", **{"modules.json": [{"type": "a.Pooling", "path": "1_Pooling"}]})
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").symlink_to(outside / "config.json")
    with pytest.raises(CheckpointError, match="out of the model's directory"):
        sentence_files(path)
    dense = tmp_path / "model" / "2_Dense"
    dense.mkdir()
    (dense / "model.safetensors").symlink_to(outside / "model.safetensors")
    with pytest.raises(CheckpointError, match="out of the model's directory"):
        dense_head([DenseModule(directory=str(dense), shape=(2, 2), bias=True, activation="")])


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "quantize_config.json"])
def test_configurations_are_no_links_out(tmp_path: Path, name: str) -> None:
    path = model(tmp_path / "model")
    (tmp_path / "secret").write_text("{}")
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="out of the model's directory"):
        read_directory(str(path))


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json", "additional_chat_templates/a.jinja"])
def test_templates_are_no_links_out(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model"
    (path / "additional_chat_templates").mkdir(parents=True)
    (tmp_path / "secret").write_text('{"chat_template": "secret"}')
    (path / name).symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="out of the model's directory"):
        read_templates(path, {})
    (path / name).unlink()
    (path / "additional_chat_templates").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.jinja").write_text("secret")
    (path / "additional_chat_templates").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="out of the model's directory"):
        read_templates(path, {})


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "vocab.txt", "tekken.json", "tokenizer.model"]
)
def test_tokenizer_files_are_no_links_out(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model"
    path.mkdir()
    (path / "vocab.txt").write_text("a\n")
    (tmp_path / "secret").write_bytes(b'{"secret": 1}')
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="out of the model's directory"):
        read_tokenizer(path)


def test_an_index_names_files_of_its_directory(tmp_path: Path) -> None:
    path = model(tmp_path / "model", **{"index.json": {"weight_map": {"a": "../outside.safetensors"}}})
    with pytest.raises(CheckpointError, match="weight_map"):
        read_index(path / "index.json")


@pytest.mark.parametrize("name", ["other/repo--module.Class", "../module.Class", "module", "a.b.Class", 3])
def test_code_comes_from_the_checkpoint_itself(tmp_path: Path, name: object) -> None:
    with pytest.raises(UserError, match="auto_map"):
        check_code({"auto_map": {"AutoModelForCausalLM": name}}, tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "secret.py").write_text("")
    (tmp_path / "model" / "module.py").symlink_to(tmp_path / "secret.py")
    with pytest.raises(UserError, match="out of the model's directory"):
        check_code({"auto_map": {"AutoConfig": "module.Class"}}, tmp_path / "model")


def test_links_within_the_checkpoint_and_the_hubs_cache_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "1", tmp_path / "models--a--b" / "blobs"
    for folder in (snapshot / "sub", blobs):
        folder.mkdir(parents=True)
    (blobs / "abc").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    (snapshot / "sub" / "config.json").symlink_to("../../../blobs/abc")
    (snapshot / "again.json").symlink_to("config.json")
    for name in ("config.json", "sub/config.json", "again.json"):
        assert read_json(inside(snapshot, name)) == {}
    (snapshot / "other.json").symlink_to("../../refs")
    (tmp_path / "models--a--b" / "refs").write_text("{}")
    with pytest.raises(CheckpointError, match="out of the model's directory"):
        inside(snapshot, "other.json")
    (snapshot / "loop").symlink_to("loop")
    with pytest.raises(CheckpointError):
        read_file(snapshot / "loop", 10)


def test_files_that_are_no_files_and_files_that_are_too_large(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="no regular file"):
        read_file(tmp_path / "pipe", 10)
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 40)
    with pytest.raises(CheckpointError, match=f"{1 << 40} bytes; expected at most"):
        read_file(tmp_path / "large", checkpoint_files.MAX_VOCABULARY)


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch evil-was-here",)


def test_weights_of_modules_are_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = DenseModule(directory=str(tmp_path), shape=(2, 3), bias=True, activation="")
    weight, bias = torch.arange(6.0).reshape(3, 2), torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    path = tmp_path / "pytorch_model.bin"
    torch.save({"linear.weight": weight.T, "linear.bias": bias}, path)
    row = torch.tensor([[1.0, 2.0, 3.0]])
    assert torch.equal(dense_head([module])(row), row @ weight + bias.float())
    torch.save({"linear.weight": weight.T, "linear.bias": bias, "evil": Evil()}, path)
    with pytest.raises(CheckpointError, match="Nothing of it was run"):
        dense_head([module])
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError):
        dense_head([module])
    assert not (tmp_path / "evil-was-here").exists()
    torch.save({"linear.weight": torch.zeros(1).expand(1 << 20, 1 << 20)}, path)
    with pytest.raises(CheckpointError, match="lie on one another"):
        dense_head([module])


def sparse(path: Path, beginning: bytes, size: int = 64 << 30) -> Path:
    """A file of any size that takes none on the disk."""
    path.write_bytes(beginning)
    os.truncate(path, size)
    return path


def gguf(*metadata: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(metadata)) + b"".join(metadata)


def key(kind: int, rest: bytes, name: bytes = b"a") -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + rest


GGUF_CLAIMS = {
    "a text of 32 GB": gguf(key(8, struct.pack("<Q", 32 << 30))),
    "a list of 32 G bytes": gguf(key(9, struct.pack("<IQ", 0, 32 << 30))),
    "a list of 4 G numbers": gguf(key(9, struct.pack("<IQ", 10, 4 << 30))),
    "a list of 4 G texts": gguf(key(9, struct.pack("<IQ", 8, 4 << 30))),
    "a text in a list": gguf(key(9, struct.pack("<IQQ", 8, 1, 32 << 30))),
    "2 G keys": b"GGUF" + struct.pack("<IQQ", 3, 0, 2 << 30),
    "2 G tensors": b"GGUF" + struct.pack("<IQQ", 3, 2 << 30, 0),
    "a dimension of 2^63": b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"a", 1, 1 << 63, 0, 0),
}


@pytest.mark.parametrize("claim", GGUF_CLAIMS)
def test_claims_of_gguf_files_take_no_memory(tmp_path: Path, claim: str) -> None:
    path = sparse(tmp_path / "a.gguf", GGUF_CLAIMS[claim])
    assert refused_in_little_memory("core_loaders.gguf.reader", "read_header", path)


SAFETENSORS_CLAIMS = {
    "a header of 64 GB": struct.pack("<Q", (64 << 30) - 8),
    "a header of 2^63": struct.pack("<Q", 1 << 63),
    "a shape of long numbers": b'{"a": {"dtype": "U8", "shape": [%s], "data_offsets": [0, 0]}}'
    % b",".join([b"9" * 4000] * 2000),
    "20 M values": b'{"a": [%s1]}' % (b"1," * 20_000_000),
}


@pytest.mark.parametrize("claim", SAFETENSORS_CLAIMS)
def test_claims_of_safetensors_files_take_no_memory(tmp_path: Path, claim: str) -> None:
    raw = SAFETENSORS_CLAIMS[claim]
    path = sparse(tmp_path / "a.safetensors", struct.pack("<Q", len(raw)) + raw if raw[:1] == b"{" else raw)
    assert refused_in_little_memory("core_loaders.safetensors.header", "read_header", path, ", 0")


def refused_in_little_memory(module: str, function: str, path: Path, more: str = "") -> str:
    """The sentence with which a reader refuses a file, in a process that may take `ROOM` bytes."""
    program = (
        f"import resource; from pathlib import Path; from {module} import {function} as read\n"
        "from core.api.errors import CheckpointError\n"
        "size = next(int(line.split()[1]) << 10 for line in open('/proc/self/status') if line.startswith('VmData'))\n"
        f"resource.setrlimit(resource.RLIMIT_DATA, (size + {ROOM}, size + {ROOM}))\n"
        f"try:\n    read(Path({str(path)!r}){more})\nexcept CheckpointError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert path.name in done.stdout
    return done.stdout
