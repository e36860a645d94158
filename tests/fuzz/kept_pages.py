"""The file in memory in which blocks outlive an engine (`--keep-kv`), damaged between one engine and the next.

Owns: the parts of the file, and the engines on it. Never does: damage a file. Called by: the table of targets.

The file is kept in parts, because most of it is empty. `moves` has three bytes a move: from which block, to which, and whether
its record, its bytes or both are moved. `size` is the length of the file, of which 0 stands for the right one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core_kv_connectors.kept.file import PRINT_BYTES, PRINT_START, RECORDS_START, Layout, lay_out
from core_supervision.link.anonymous_file import anonymous_file
from tests.kv.kept_engine import NUM_BLOCKS, KeptEngine
from tests.kv.tier_fakes import FIRST, OTHER_PRINT, PAGE_BYTES

NAMES = ("header", "print", "records", "blocks", "moves", "size")
SHORT_HEADER = 128
MOST_MOVES = 32
PROMPTS = ((FIRST, ""), (range(100, 113), ""), (range(17), "ann"))
"""Prompts and tenants of the engine that dies: the second one has other tokens, the third one another tenant."""


def make_kept(folder: Path) -> None:
    """Write the parts of the file of an engine that has died, and look that the next one adopts all. Raises AssertionError."""
    with memory() as file:
        engine = KeptEngine(file)
        for tokens, tenant in PROMPTS:
            engine.run(tokens, tenant=tenant)
            engine.rest()
        for name, (start, stop) in _parts(engine.layout).items():
            (folder / name).write_bytes(os.pread(file, stop - start, start))
    (folder / "moves").write_bytes(bytes(3))
    (folder / "size").write_bytes(bytes(4))
    assert read_kept(folder) == [len(tokens) // 4 * 4 for tokens, _ in PROMPTS], "good blocks are not adopted"


def read_kept(folder: Path) -> list[int]:
    """Start an engine on the file, then one more, and one of other weights on a copy; returns what the first one adopted.

    Raises AssertionError for a block with other bytes than its tokens have.
    """
    with memory() as file:
        _put_together(file, folder)
        _run(KeptEngine(file, OTHER_PRINT, weights=5))
    with memory() as file:
        _put_together(file, folder)
        found = _run(KeptEngine(file))
        _run(KeptEngine(file))
    return found


@contextmanager
def memory() -> Iterator[int]:
    """An empty file in memory."""
    file = anonymous_file("fuzz-kv", 0)
    try:
        yield file
    finally:
        os.close(file)


def _run(engine: KeptEngine) -> list[int]:
    found = [engine.run(tokens, tenant=tenant) for tokens, tenant in PROMPTS]
    engine.rest()
    return found


def _parts(layout: Layout) -> dict[str, tuple[int, int]]:
    """Where the parts of a file begin and end."""
    records, blocks = layout.num_blocks * layout.record_bytes, layout.num_blocks * PAGE_BYTES
    return {
        "header": (0, SHORT_HEADER),
        "print": (PRINT_START, PRINT_START + PRINT_BYTES),
        "records": (RECORDS_START, RECORDS_START + records),
        "blocks": (layout.starts[0], layout.starts[0] + blocks),
    }


def _put_together(file: int, folder: Path) -> None:
    """Lay the parts into a file, as far as there is room for them, then move, then change its size."""
    layout = lay_out(file, NUM_BLOCKS, [PAGE_BYTES], 4)
    for name, (start, stop) in _parts(layout).items():
        os.pwrite(file, (folder / name).read_bytes()[: stop - start], start)
    moves = (folder / "moves").read_bytes()[: 3 * MOST_MOVES]
    sizes = ((RECORDS_START, layout.record_bytes), (layout.starts[0], PAGE_BYTES))
    for source, target, what in zip(moves[0::3], moves[1::3], moves[2::3], strict=False):
        for start, size in sizes[:1] if what % 3 == 1 else sizes[1:] if what % 3 == 2 else sizes:
            moved = os.pread(file, size, start + source % NUM_BLOCKS * size)
            os.pwrite(file, moved, start + target % NUM_BLOCKS * size)
    size = int.from_bytes((folder / "size").read_bytes()[:4], "little")
    if size:
        os.ftruncate(file, size % (2 * layout.nbytes))
