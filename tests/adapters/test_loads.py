"""Loads and unloads leave memory flat: the short form of `make test-adapter-memory`, which does it 10,000 times."""

from pathlib import Path

from tests.adapters.drawn import shapes_of, write_adapter
from tests.adapters.loads import looped

RANK = 64
FIRST, LOADS = 30, 110


def test_memory_is_flat(tiny_llama: Path, tmp_path: Path) -> None:
    shapes = shapes_of(str(tiny_llama))
    paths = [write_adapter(tmp_path / str(seed), shapes, RANK, seed) for seed in range(3)]
    early, late = looped(tiny_llama, paths, LOADS, FIRST, ask_every=20)
    adapter = sum(RANK * (outputs + inputs) * 4 for outputs, inputs in shapes.values()) / 1e6
    # One adapter that stayed would be as large; all that were loaded meanwhile, eighty times that.
    assert late.megabytes - early.megabytes <= 0.1 * adapter * (LOADS - FIRST)
    assert late.maps - early.maps <= 16
