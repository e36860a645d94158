"""Prepared weights that outlive an engine: the next one has the same bits, and never half of them."""

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.api.config import EngineConfig
from core.api.errors import UserError
from core_config.resolve import resolve
from core_runtime.executor.uniproc import UniprocExecutor
from core_supervision.link.anonymous_file import anonymous_file
from tests.executor.whole_engine import answer


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = anonymous_file("test-weights", 0)
    yield descriptor
    os.close(descriptor)


def config_of(path: Path, file: int, how: str, **settings: Any) -> EngineConfig:
    given = {"model": str(path), "max_model_len": 64, "max_num_seqs": 2, "use_tqdm_on_load": False, **settings}
    config = resolve(given, context="serve", environ={}).engine
    return msgspec.structs.replace(config, keep_weights=how, weights_file=file)


@pytest.mark.parametrize(
    ("model", "how"),
    [
        ("tiny_llama", "copy"),
        ("tiny_gemma3", "map"),
        pytest.param("tiny_llama", "map", marks=pytest.mark.slow),
        pytest.param("tiny_gemma3", "copy", marks=pytest.mark.slow),
    ],
)
def test_the_next_engine_packs_nothing_and_has_the_same_bits(
    model: str, how: str, file: int, packed: list[str], request: pytest.FixtureRequest
) -> None:
    config = config_of(request.getfixturevalue(model), file, how)
    first = answer(config)
    assert len(first[1]) == 12
    assert packed
    packed.clear()
    assert answer(config) == first
    assert answer(config) == first
    assert not packed


def test_fewer_sequences_use_the_same_weights(tiny_llama: Path, file: int, packed: list[str]) -> None:
    config = config_of(tiny_llama, file, "copy")
    first = answer(config)
    packed.clear()
    fewer = msgspec.structs.replace(config.scheduler, max_num_seqs=1)
    assert answer(msgspec.structs.replace(config, scheduler=fewer)) == first
    assert not packed


def test_what_was_left_incomplete_is_made_again(tiny_llama: Path, file: int, packed: list[str]) -> None:
    os.write(file, b"half of the weights" * 1000)
    config = config_of(tiny_llama, file, "copy")
    first = answer(config)
    packed.clear()
    assert answer(config) == first
    assert not packed


def test_another_checkpoint_is_not_served_with_kept_weights(
    tiny_llama: Path, tmp_path: Path, file: int, packed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model"
    shutil.copytree(tiny_llama, path)
    config = config_of(path, file, "map")
    first = answer(config)
    packed.clear()
    for changed in path.glob("*.safetensors"):
        os.utime(changed, ns=(1, 1))
    with caplog.at_level(logging.WARNING):
        assert answer(config) == first
    assert packed
    assert "has changed since its weights were kept" in caplog.text


def test_kept_weights_cannot_be_changed(tiny_llama: Path, file: int) -> None:
    answer(config_of(tiny_llama, file, "copy"))
    with pytest.raises(PermissionError):
        os.pwrite(file, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(file, 0)


def test_too_little_memory_keeps_nothing(
    tiny_llama: Path, file: int, packed: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("core_runtime.executor.reloading.prepared_writer.PreparedWriter.block", full)
        config = config_of(tiny_llama, file, "copy")
        first = answer(config)
    assert "No space left on device" in caplog.text
    packed.clear()
    assert answer(config) == first
    assert packed


def test_layers_that_cannot_be_kept_are_refused_by_name(tiny_llama: Path, file: int) -> None:
    config = config_of(tiny_llama, file, "copy")
    modules = msgspec.structs.replace(config.model, implementation="transformers")
    config = msgspec.structs.replace(config, model=modules)
    with pytest.raises(UserError, match="--keep-weights copy: cannot be used with layers of transformers"):
        UniprocExecutor(config)
