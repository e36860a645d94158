"""Files of every architecture, made by llama.cpp's own converter, against the models of transformers that they were made from.

The files and logits are in `tests/checkpoints/gguf`, see `make.py` there.
"""

import lzma
from pathlib import Path

import numpy as np
import pytest

from core_loaders.gguf.loader import GGUFLoader
from core_loaders.gguf.reader import read_architecture
from core_loaders.gguf.table import architectures
from core_quantization.gguf.blocks import FORMATS
from tests.checkpoints.gguf.cases import CASES, ENCODERS, IDS
from tests.families.harness import Harness, Piece

FILES = Path(__file__).parents[1] / "checkpoints" / "gguf"
TOLERANCE = 2e-5
"""Largest absolute difference of a logit; the largest logits are about 5."""


def unpacked(name: str, folder: Path) -> Path:
    path = folder / f"{name}.gguf"
    path.write_bytes(lzma.decompress((FILES / f"{name}.gguf.xz").read_bytes()))
    return path


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    path = unpacked(name, tmp_path)
    model = Harness(path, loader=GGUFLoader())
    numbers = model.hidden if name in ENCODERS else model.logits
    found = numbers([Piece(0, IDS, 0)])
    expected = np.load(FILES / f"{name}.npy")
    assert np.abs(found.numpy() - expected).max() < TOLERANCE


def test_a_head_that_ranks(tmp_path: Path) -> None:
    path = unpacked("roberta-rank", tmp_path)
    model = Harness(path, loader=GGUFLoader())
    head = model.model.weights.pooling_head
    assert head is not None
    found = head(model.hidden([Piece(0, IDS, 0)])[:1])[0]
    assert np.abs(found.numpy() - np.load(FILES / "roberta-rank-scores.npy")).max() < TOLERANCE
    manifest = GGUFLoader().resolve(str(path))
    assert manifest.config["id2label"] == {"0": "fits"} and manifest.pooling is None


def test_every_row_has_a_file(tmp_path: Path) -> None:
    seen = {read_architecture(str(unpacked(name, tmp_path))) for name in CASES}
    assert seen == set(architectures())
    assert len(seen) >= 20


def test_the_document_lists_every_row_and_type() -> None:
    document = (Path(__file__).parents[2] / "docs" / "gguf.md").read_text()
    assert all(f"`{name}`" in document for name in architectures())
    for name, row in FORMATS.items():
        assert f"| {name} | {row.form} | {row.held_bytes / row.block_bytes:.2f} |" in document
