"""Prepared weights in a directory: a later start packs nothing and has the same bits, and what does not fit is never used."""

import fcntl
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from core.api.config import EngineConfig
from core.api.errors import UserError
from core_config.resolve import resolve
from tests.executor.whole_engine import answer


def config_of(model: Path, directory: Path, **settings: Any) -> EngineConfig:
    given = {"model": str(model), "max_model_len": 64, "max_num_seqs": 2, "use_tqdm_on_load": False}
    given |= {"prepared_weights": str(directory), **settings}
    return resolve(given, context="llm", environ={}).engine


@pytest.fixture
def model(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def only_file(store: Path) -> Path:
    (file,) = store.iterdir()
    return file


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_gemma3"])
def test_a_later_start_packs_nothing_and_has_the_same_bits(
    name: str,
    store: Path,
    packed: list[str],
    request: pytest.FixtureRequest,
) -> None:
    config = config_of(request.getfixturevalue(name), store)
    first = answer(config)
    assert len(first[1]) == 12 and packed
    packed.clear()
    assert answer(config) == first
    assert answer(config) == first
    assert not packed


def test_more_sequences_and_other_lengths_use_the_same_file(model: Path, store: Path, packed: list[str]) -> None:
    first = answer(config_of(model, store))
    packed.clear()
    assert answer(config_of(model, store, max_num_seqs=4, max_model_len=128, served_model_name=["other"])) == first
    assert not packed


def test_other_types_replace_the_file(model: Path, store: Path, packed: list[str]) -> None:
    answer(config_of(model, store, dtype="bfloat16"))
    packed.clear()
    wanted = answer(config_of(model, store, dtype="float32"))
    assert packed
    packed.clear()
    assert answer(config_of(model, store, dtype="float32")) == wanted
    assert not packed
    assert only_file(store).stat().st_mode & 0o077 == 0


def test_a_changed_checkpoint_is_packed_again(model: Path, store: Path, packed: list[str]) -> None:
    first = answer(config_of(model, store))
    packed.clear()
    for file in model.glob("*.safetensors"):
        os.utime(file, ns=(1, 1))
    assert answer(config_of(model, store)) == first
    assert packed


@pytest.mark.parametrize("left", [0, 7, 100, -1])
def test_a_cut_file_is_told_and_replaced(
    left: int,
    model: Path,
    store: Path,
    packed: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = answer(config_of(model, store))
    file = only_file(store)
    os.truncate(file, left if left >= 0 else file.stat().st_size - 1)
    packed.clear()
    with caplog.at_level(logging.WARNING):
        assert answer(config_of(model, store)) == first
    assert packed and f"{file}: is not used" in caplog.text
    packed.clear()
    assert answer(config_of(model, store)) == first
    assert not packed


def test_a_file_that_others_can_write_is_not_used(
    model: Path,
    store: Path,
    packed: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = answer(config_of(model, store))
    only_file(store).chmod(0o666)
    packed.clear()
    with caplog.at_level(logging.WARNING):
        assert answer(config_of(model, store)) == first
    assert packed and "not a file that this user alone can write" in caplog.text


def test_what_a_dead_engine_left_is_written_again(model: Path, store: Path, packed: list[str]) -> None:
    answer(config_of(model, store))
    file = only_file(store)
    file.rename(file.with_name(f"{file.name}.part"))
    answer(config_of(model, store))
    packed.clear()
    answer(config_of(model, store))
    assert not packed and only_file(store) == file


def test_what_another_engine_writes_is_left_to_it(model: Path, store: Path) -> None:
    answer(config_of(model, store))
    file = only_file(store)
    part = file.rename(file.with_name(f"{file.name}.part"))
    part.write_bytes(b"half")
    with part.open("rb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        answer(config_of(model, store))
    assert only_file(store) == part and part.read_bytes() == b"half"


def test_a_full_disk_stores_nothing(
    model: Path, store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("core_runtime.executor.reloading.prepared_writer.PreparedWriter.block", full)
    answer(config_of(model, store))
    assert "No space left on device" in caplog.text and not list(store.iterdir())


def test_a_directory_that_others_can_write_is_refused(model: Path, store: Path) -> None:
    store.mkdir()
    store.chmod(0o777)
    with pytest.raises(UserError, match=f"--prepared-weights {store}: others may write there"):
        answer(config_of(model, store))


def test_a_file_is_no_directory(model: Path, store: Path) -> None:
    store.write_text("")
    with pytest.raises(UserError, match=f"--prepared-weights {store}: is not a directory"):
        answer(config_of(model, store))


def test_layers_without_prepared_kernels_are_refused(model: Path, store: Path) -> None:
    with pytest.raises(UserError, match="--prepared-weights: cannot be used with layers of transformers"):
        answer(config_of(model, store, model_impl="transformers"))
