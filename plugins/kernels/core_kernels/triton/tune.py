"""Tiles of products, measured on the device that is there: lines for a table.

Owns: which products of a model are measured, in which tiles, and which tile is best. Never does: change what is used (a
user gives the lines to `--kernels-config.triton.tiles`). Called by: `core kernels tune`, through the capability `tune`.

A tile that does not fit into the chip, or does without the matrix units that the others use, is none: all tiles of a weight
must give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from core.api.errors import UserError
from core_kernels.triton.ahead import target_of
from core_kernels.triton.launches import Call, written
from core_kernels.triton.product_tiles import Tiles, Use, shipped
from core_kernels.triton.tile_rows import ANY, COLUMNS, Key, Tile, line_of
from core_kernels.triton.work import Work, work_of
from core_runtime.contracts.ahead import Run
from core_runtime.contracts.tuning import Tuned

PRODUCT: Final = "product_kernel:product"
"""The kernel whose tiles are in the table; others of that name have tiles of their own."""
LEVELS: Final = (16, 32, 64, 0)
"""Rows for which a group has lines; 0: any number."""
BN: Final = (32, 64, 128, 256)
BT: Final = {16: (16,), 32: (16, 32), 64: (32, 64), 0: (32, 64, 128)}
WARPS: Final = (4, 8)
USES: Final[dict[str, Use]] = {"segments": "segments", "experts": "experts"}
"""What lines of dense weights are for, by their word."""
STAGES: Final = {"cuda": (2, 3, 4, 5), "hip": (1, 2)}


class Bench(Protocol):
    """A device to measure on."""

    def admits(self, work: Work, tile: Tile, level: int) -> bool:
        """Whether the device can run it, as it runs the others."""
        ...

    def seconds(self, work: Work, tile: Tile, level: int) -> float:
        """Of one call for rows of a level."""
        ...


@dataclass(frozen=True, slots=True)
class Best:
    """What was found for rows of a level. seconds: of the tile; before: of the one that comes with the kernels."""

    key: Key
    tile: Tile
    seconds: float
    before: float

    @property
    def line(self) -> str:
        """For a table, with what was measured."""
        return f"{line_of(self.key, self.tile):<70}  # {self.seconds * 1e6:.1f} us, {self.before * 1e6:.1f} before"


def tune(chip: str, run: Run, say: Tuned) -> str:
    """The lines of a table for the products of a model; see `Tune`. Raises UserError without such a device."""
    from core_kernels.triton.tune_device import DeviceBench

    target = target_of(chip)
    bench = DeviceBench(target)
    works = works_of(launched(run, chip), chip)
    found = list(measured(works, bench, chip, target.backend, say))
    return table(found)


def launched(run: Run, chip: str) -> list[Call]:
    """What a model calls on the device that is there."""
    with written() as calls:
        run(chip)
    return list(calls)


def works_of(calls: Iterable[Call], chip: str) -> list[Work]:
    """The products in tiles of the table that differ in more than their rows. Raises UserError where there is none."""
    products = [call for call in calls if call.launch.function.endswith(PRODUCT)]
    works = list(dict.fromkeys(work_of(call, chip) for call in products))
    if not works:
        raise UserError("core kernels tune: the model calls no product whose tiles could be chosen.")
    return works


def measured(works: Iterable[Work], bench: Bench, chip: str, backend: str, say: Tuned) -> Iterator[Best]:
    """The best tile of each product for each level; `say` is told of each."""
    before = Tiles(shipped())
    done: set[Key] = set()
    for work in works:
        if work.key in done:  # of experts and of a plain layer: one group
            continue
        done.add(work.key)
        for level in LEVELS:
            weight, shape = work.key.weight, (work.key.outputs, work.key.inputs)
            use = USES.get(weight, "plain")
            word = "dense" if weight in USES else weight
            usual = before.tile_for(chip, word, use, shape, level or max(LEVELS) + 1)
            best = best_of(work, usual, level, bench, backend)
            say(best.line)
            yield best


def best_of(work: Work, usual: Tile, level: int, bench: Bench, backend: str) -> Best:
    """The quickest tile, the usual one where none is quicker."""
    usual = usual._replace(rows=level)
    before = best = bench.seconds(work, usual, level)
    chosen = usual
    for tile in candidates(level, backend):
        if tile != usual and bench.admits(work, tile, level):
            seconds = bench.seconds(work, tile, level)
            if seconds < best:
                chosen, best = tile, seconds
    return Best(work.key, chosen, best, before)


def candidates(level: int, backend: str) -> Iterator[Tile]:
    """The tiles that are tried for rows of a level."""
    for bn in BN:
        for bt in BT[level]:
            for warps in WARPS:
                for stages in STAGES[backend]:
                    yield Tile(level, bn, bt, warps, stages)


def table(found: Iterable[Best]) -> str:
    """The lines, for a file."""
    head = f"# {' '.join(COLUMNS)} ({ANY}: any); measured by `core kernels tune`"
    return "\n".join([head, *(best.line for best in found)]) + "\n"
