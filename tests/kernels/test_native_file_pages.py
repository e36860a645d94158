"""Large matrices are packed from a mapped file piece by piece, and its pages are given back meanwhile."""

from __future__ import annotations

import mmap
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from core_loaders.mapped import open_map
from core_platforms.cpu.kernels import NativeKernels
from core_quantization.gguf.blocks import FORMATS
from core_quantization.gguf.method import translate
from core_runtime.weights.stored_rows import StoredRows, stored_rows

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux")

ROWS, INPUTS = 16384, 4096
ROW_BYTES = INPUTS // 32 * 34
"""Of Q8_0: 71 MB in all, more than twice a piece."""


@pytest.fixture(scope="module")
def raw() -> Tensor:
    random = torch.Generator().manual_seed(1)
    whole = torch.randint(0, 256, (ROWS, ROW_BYTES), dtype=torch.uint8, generator=random)
    whole.view(ROWS, -1, 34)[:, :, 1] = 0x2C  # the upper byte of each scale: finite numbers
    return whole


def stored(rows: Tensor) -> StoredRows:
    return stored_rows("x", "Q8_0", rows, partial(translate, row=FORMATS["Q8_0"]))


def packed(weight: StoredRows) -> Tensor:
    kernels = NativeKernels(2)
    nbytes = kernels.prepared_nbytes(weight, activation="int8")
    memory = torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8)
    kernels.linear(weight, activation="int8", into=memory)
    return memory


def resident_bytes(tensor: Tensor) -> int:
    """Bytes of the mapping around a tensor that are in this process's memory."""
    inside, total = False, 0
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        head = line.split(" ")[0]
        if "-" in head and not head.endswith(":"):
            first, last = (int(part, 16) for part in head.split("-"))
            inside = first < tensor.data_ptr() + tensor.nbytes and last > tensor.data_ptr()
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


def test_of_a_mapped_file_at_most_a_piece_stays_and_the_bits_are_the_same(raw: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(raw.numpy().tobytes())
    data = open_map(str(path))
    mapped = torch.frombuffer(data, dtype=torch.uint8).view(ROWS, ROW_BYTES)
    from_file = packed(stored(mapped))
    assert resident_bytes(mapped) < raw.nbytes // 8  # what a page fault maps around the last rows
    assert torch.equal(mapped, raw)  # and whoever reads it again finds it in the file
    assert resident_bytes(mapped) > raw.nbytes // 2
    assert torch.equal(from_file, packed(stored(raw)))


def test_memory_that_is_no_file_keeps_its_content(raw: Tensor) -> None:
    before = raw.clone()
    packed(stored(raw))
    assert torch.equal(raw, before)
    packed(stored(raw).rows(torch.arange(ROWS).roll(ROWS // 2)))  # the first row lies behind the last one
    assert torch.equal(raw, before)


def test_a_shared_mapping_keeps_its_content(raw: Tensor, tmp_path: Path) -> None:
    shared = mmap.mmap(-1, raw.nbytes, flags=mmap.MAP_SHARED)
    rows = torch.frombuffer(shared, dtype=torch.uint8).view(ROWS, ROW_BYTES)
    rows.copy_(raw)
    packed(stored(rows))
    assert resident_bytes(rows) >= raw.nbytes
    assert torch.equal(rows, raw)


def test_rows_in_another_order_are_packed_from_where_they_lie(raw: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(raw.numpy().tobytes())
    mapped = torch.frombuffer(open_map(str(path)), dtype=torch.uint8).view(ROWS, ROW_BYTES)
    order = torch.arange(ROWS).view(2, -1).T.reshape(-1)
    weight = stored(mapped).rows(order)
    assert isinstance(weight, StoredRows)
    assert torch.equal(packed(weight), packed(stored(raw[order])))
