"""Models in several GGUF files, and directories with GGUF files."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from core.api.errors import CheckpointError
from core_loaders.gguf import manifest as gguf_manifest
from core_loaders.gguf.loader import GGUFLoader
from core_runtime.specs.checkpoint import FileFacts
from tests.loaders.gguf_files import finish, write_gguf

COUNT = 3


def parts_of(whole: Path, folder: Path, base: str = "model") -> list[Path]:
    """The file as llama.cpp's `gguf-split` divides it: metadata in the first part, and what is split in each."""
    reader = GGUFReader(whole)
    paths = []
    for number in range(COUNT):
        path = folder / f"{base}-{number + 1:05d}-of-{COUNT:05d}.gguf"
        writer = GGUFWriter(str(path), "llama")
        if number:
            writer.kv_data[0].clear()
        else:
            copy_metadata(reader, writer)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", COUNT)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number::COUNT]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        finish(writer)
        paths.append(path)
    return paths


def copy_metadata(reader: GGUFReader, writer: GGUFWriter, without: Collection[str] = ()) -> None:
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")) and key not in without:
            writer.add_key_value(
                key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None
            )


def values(ref: str) -> dict[str, torch.Tensor]:
    loader = GGUFLoader()
    manifest = loader.resolve(ref)
    return {name: tensor.clone() for name, tensor in loader.iter(manifest, list(manifest.tensors))}


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "split"
    folder.mkdir()
    return parts_of(write_gguf(tmp_path / "whole.gguf"), folder)


def test_parts_are_the_whole_whichever_is_named(split: list[Path], tmp_path: Path) -> None:
    expected = values(str(tmp_path / "whole.gguf"))
    for ref in (*split, split[0].parent):
        found = values(str(ref))
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    manifest = GGUFLoader().resolve(str(split[1]))
    assert manifest.files == [str(path) for path in split]
    assert manifest.tokenizer.vocabulary is not None


def test_a_missing_part_is_named(split: list[Path]) -> None:
    split[1].unlink()
    with pytest.raises(CheckpointError, match=r"one of 3 parts.*'model-00002-of-00003\.gguf' is not beside it"):
        GGUFLoader().resolve(str(split[0]))


def test_parts_of_different_models_do_not_mix(split: list[Path], tmp_path: Path) -> None:
    split[2].write_bytes(split[1].read_bytes())
    with pytest.raises(CheckpointError, match="says that it is part 2 of 3, its name says 3 of 3"):
        GGUFLoader().resolve(str(split[0]))
    renamed = tmp_path / "part.gguf"
    split[0].rename(renamed)
    with pytest.raises(CheckpointError, match="which its name must say"):
        GGUFLoader().resolve(str(renamed))


def test_a_tensor_of_two_parts_and_a_wrong_count_are_found(split: list[Path]) -> None:
    first = split[0].read_bytes()
    count = first.index(b"split.tensors.count") + len(b"split.tensors.count") + 4
    announced = int.from_bytes(first[count : count + 4], "little")
    split[0].write_bytes(first[:count] + (announced + 1).to_bytes(4, "little") + first[count + 4 :])
    with pytest.raises(
        CheckpointError, match=f"announces {announced + 1} tensors in all parts, which have {announced}"
    ):
        GGUFLoader().resolve(str(split[0]))
    split[0].write_bytes(first)
    second = split[1].read_bytes()
    names = [tensor.name.encode() for part in split for tensor in GGUFReader(part).tensors]
    taken = next(name for name in names if name in first and len(name) == len(b"blk.0.attn_q.weight"))
    mine = next(name for name in names if name in second and len(name) == len(taken))
    split[1].write_bytes(second.replace(mine, taken, 1))
    with pytest.raises(CheckpointError, match=f"tensor '{taken.decode()}' is in 'model-00001-of-00003.gguf', too"):
        GGUFLoader().resolve(str(split[0]))


def test_a_directory_of_several_models_lists_them(split: list[Path]) -> None:
    folder = split[0].parent
    write_gguf(folder / "other.gguf")
    with pytest.raises(CheckpointError, match=r"found model-\*-of-00003.gguf, other.gguf. Name the file itself"):
        GGUFLoader().resolve(str(folder))
    (folder / "other.gguf").rename(folder / "mmproj-model.gguf")  # the eyes of a model are none
    assert len(GGUFLoader().resolve(str(folder)).files) == COUNT


def test_a_directory_of_parts_is_claimed(split: list[Path]) -> None:
    names = tuple(path.name for path in split)
    facts = FileFacts(ref="m", path="/m", is_directory=True, names=names)
    assert gguf_manifest.core_claim(facts)
    assert not gguf_manifest.core_claim(FileFacts(ref="m", path="/m", is_directory=True, names=(*names, "b.gguf")))


def test_types_are_kept(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", quant=GGMLQuantizationType.Q4_1)
    paths = parts_of(whole, tmp_path, "q")
    manifest = GGUFLoader().resolve(str(paths[2]))
    kinds = {info.dtype for info in manifest.tensors.values()}
    assert kinds == {"Q4_1", "F32"}
    assert np.unique([info.file for info in manifest.tensors.values()]).tolist() == [0, 1, 2]
