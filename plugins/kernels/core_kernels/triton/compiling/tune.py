"""Tuning: measures tiles of products on the present device and writes lines for a table.

Owns: the choice of products and tiles to measure, and of the best tile. Never does: change the tiles in use (a user
passes the lines to `--kernels-config.triton.tiles`). Called by: `core kernels tune`, through the capability `tune`.

A tile that does not fit the chip, or does not use the matrix units that the others use, is not a candidate: all tiles
of a weight must give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from core.api.errors import UserError
from core_kernels.triton.compiling.ahead import target_of
from core_kernels.triton.compiling.launches import Call, written
from core_kernels.triton.compiling.work import Work, work_of
from core_kernels.triton.products.kernel import product
from core_kernels.triton.products.tile_rows import ANY, COLUMNS, Key, Tile, line_of
from core_kernels.triton.products.tiles import Tiles, Use, shipped
from core_runtime.contracts.ahead import Run
from core_runtime.contracts.tuning import Tuned

PRODUCT: Final = f"{product.fn.__module__}:product"
"""The kernel whose tiles are in the table; other kernels named `product` have their own."""
LEVELS: Final = (16, 32, 64, 0)
"""Row counts for which a group has lines; 0: any."""
BN: Final = (32, 64, 128, 256)
BT: Final = {16: (16,), 32: (16, 32), 64: (32, 64), 0: (32, 64, 128)}
WARPS: Final = (4, 8)
USES: Final[dict[str, Use]] = {"segments": "segments", "experts": "experts"}
"""Use of a group of lines, by its word in the launch's title."""
STAGES: Final = {"cuda": (2, 3, 4, 5), "hip": (1, 2)}


class Bench(Protocol):
    """A device to measure on."""

    def admits(self, work: Work, tile: Tile, level: int) -> bool:
        """Whether the device can run this tile with the same instructions as the others."""
        ...

    def seconds(self, work: Work, tile: Tile, level: int) -> float:
        """Return the seconds of one call for the rows of a level."""
        ...


@dataclass(frozen=True, slots=True)
class Best:
    """The result for the rows of a level. seconds: of the best tile; before: of the built-in one."""

    key: Key
    tile: Tile
    seconds: float
    before: float

    @property
    def line(self) -> str:
        """Format a table line with the measurement."""
        return f"{line_of(self.key, self.tile):<70}  # {self.seconds * 1e6:.1f} us, {self.before * 1e6:.1f} before"


def tune(chip: str, run: Run, say: Tuned) -> str:
    """Return table lines for the products of a model; see `Tune`. Raises UserError without such a device."""
    from core_kernels.triton.compiling.tune_device import DeviceBench

    target = target_of(chip)
    bench = DeviceBench(target)
    works = works_of(launched(run, chip), chip)
    found = list(measured(works, bench, chip, target.backend, say))
    return table(found)


def launched(run: Run, chip: str) -> list[Call]:
    """Return a model's kernel calls on the present device."""
    with written() as calls:
        run(chip)
    return list(dict.fromkeys(calls))


def works_of(calls: Iterable[Call], chip: str) -> list[Work]:
    """Return the products with tiles in the table that differ in more than their rows. Raises UserError when there are
    none.
    """
    products = [call for call in calls if call.launch.function == PRODUCT]
    works = list(dict.fromkeys(work_of(call, chip) for call in products))
    if not works:
        raise UserError("core kernels tune: the model calls no product whose tiles could be chosen.")
    return works


def measured(works: Iterable[Work], bench: Bench, chip: str, backend: str, say: Tuned) -> Iterator[Best]:
    """Yield the best tile of each product and level; reports each to `say`."""
    before = Tiles(shipped())
    done: set[Key] = set()
    for work in works:
        if work.key in done:  # experts and a plain layer with the same key share a group
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
    """Return the fastest tile; the usual one where none is faster."""
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
    """Yield the tiles to try for the rows of a level."""
    for bn in BN:
        for bt in BT[level]:
            for warps in WARPS:
                for stages in STAGES[backend]:
                    yield Tile(level, bn, bt, warps, stages)


def table(found: Iterable[Best]) -> str:
    """Format the lines as a file."""
    head = f"# {' '.join(COLUMNS)} ({ANY}: any); measured by `core kernels tune`"
    return "\n".join([head, *(best.line for best in found)]) + "\n"
