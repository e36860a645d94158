"""The GGUF header reader against the `gguf` package, and against damage."""

import random
import struct
from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFValueType

from core.api.errors import CheckpointError
from core.api.specs import LayerSpec
from core_loaders.gguf.loader import GGUFLoader
from core_loaders.gguf.reader import read_header
from core_quantization.gguf.method import GGUFMethod
from core_tokens.tokenizer import Tokenizer
from tests.loaders.gguf_files import write_gguf
from tests.real_models import smollm2_path


def header_bytes(path: Path) -> int:
    return min(tensor.offset for tensor in read_header(str(path)).tensors)


def test_header_equals_the_gguf_package() -> None:
    path = smollm2_path()
    header, expected = read_header(str(path)), GGUFReader(str(path))
    assert [(t.name, t.shape, t.type.name, t.offset, t.nbytes) for t in header.tensors] == [
        (t.name, tuple(int(n) for n in t.shape[::-1]), t.tensor_type.name, int(t.data_offset), int(t.n_bytes))
        for t in expected.tensors
    ]
    fields = {key: field for key, field in expected.fields.items() if not key.startswith("GGUF.")}
    assert set(header.metadata) == set(fields)
    for key, field in fields.items():
        if field.types[0] != GGUFValueType.ARRAY:
            assert header.metadata[key] == field.contents(), key
        else:
            assert len(header.metadata[key]) == len(field.data)
            for index in (0, len(field.data) // 2, -1):
                assert header.metadata[key][index] == field.contents(index)


def use_fully(path: Path) -> None:
    """Everything that a start does with a file."""
    loader = GGUFLoader()
    manifest = loader.resolve(str(path))
    if manifest.tokenizer.vocabulary is not None:
        Tokenizer.from_source(manifest.tokenizer).encode("hello")
    method = GGUFMethod(manifest, "int8")
    for name, tensor in loader.iter(manifest, list(manifest.tensors)):
        if tensor.dim() == 2:
            method.pack(LayerSpec(name.removesuffix(".weight"), "linear", tuple(tensor.shape)), {name: tensor})


def test_200_random_damages_end_in_a_sentence_or_work(tmp_path: Path) -> None:
    """Truncations and bit flips: a CheckpointError that names the file, or a model that loads; never another error."""
    chance = random.Random(7)
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    head = header_bytes(tmp_path / "whole.gguf")
    target = tmp_path / "damaged.gguf"
    refused = 0
    for case in range(200):
        damaged = bytearray(whole)
        if case % 4 == 0:
            del damaged[chance.randrange(len(damaged)) :]
        else:
            for _ in range(chance.choice((1, 1, 4, 16))):
                damaged[chance.randrange(head)] ^= 1 << chance.randrange(8)
        target.write_bytes(damaged)
        try:
            use_fully(target)
        except CheckpointError as error:
            refused += 1
            assert len(str(error)) < 600
            assert "damaged.gguf" in str(error) or "vocabulary" in str(error) or "Tensor" in str(error)
    assert refused > 100


def test_random_damage_of_a_real_header(tmp_path: Path) -> None:
    chance = random.Random(11)
    path = smollm2_path()
    size, head = path.stat().st_size, header_bytes(path)
    start = path.read_bytes()[:head]
    target = tmp_path / "damaged.gguf"
    for _ in range(40):
        damaged = bytearray(start)
        for _ in range(3):
            damaged[chance.choice((chance.randrange(2000), chance.randrange(head)))] ^= 1 << chance.randrange(8)
        target.write_bytes(damaged)
        with open(target, "r+b") as file:
            file.truncate(chance.choice((size, chance.randrange(head, size))))
        try:
            GGUFLoader().resolve(str(target))
        except CheckpointError as error:
            assert str(target) in str(error)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty"),
        (b"GGUF", "ends at byte 4"),
        (b"PK\x03\x04" + bytes(60), "starts with"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "little-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "do not fit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "do not fit"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + bytes(60), "a name of"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 8, 1 << 61) + bytes(60), "more than the file holds"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 4, 1 << 61) + bytes(60), "announced"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 9, 1) + bytes(60), "unknown type"),
    ],
)
def test_absurd_headers_are_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=expected) as caught:
        read_header(str(path))
    assert str(path) in str(caught.value)
