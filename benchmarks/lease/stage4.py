"""Stage 4: tiles of products. A dozen candidates a shape and number of rows are compiled by all processes, then measured.

Owns: the candidates. Never does: change a table; it prints lines for one. Called by: `benchmarks.lease.child`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch

from benchmarks.lease.place import Measurement, Place
from benchmarks.lease.rows import Row
from benchmarks.lease.shapes import TINY, write
from benchmarks.lease.tests_there import out
from core_commands.cli.kernels_model import configured
from core_kernels.triton.compiling.ahead import Part, compile_all, target_of
from core_kernels.triton.compiling.chips import Chip
from core_kernels.triton.compiling.launch import architecture_of
from core_kernels.triton.compiling.launches import standing_in, written
from core_kernels.triton.compiling.tune import LEVELS, USES, launched, works_of
from core_kernels.triton.compiling.tune_device import DeviceBench, Prepared
from core_kernels.triton.compiling.work import Work
from core_kernels.triton.products.tile_rows import Tile, line_of
from core_kernels.triton.products.tiles import Tiles, shipped
from core_runtime.executor.dry_run import dry_run

NAMES: Final = ("Llama-3-8B", "Qwen3-30B-A3B")
REHEARSED: Final = "sm_90"
"""The chip of a rehearsal."""
DEPTH: Final = 64
"""Inputs of a tile."""
CANDIDATES: Final[dict[int, tuple[tuple[int, int, int, int], ...]]] = {
    16: tuple((bn, 16, 4, stages) for bn in (32, 64, 128) for stages in (3, 4, 5, 6)),
    32: tuple((bn, 32, 4, stages) for bn in (32, 64, 128) for stages in (3, 4, 5, 6)),
    64: tuple((bn, 64, warps, stages) for bn in (64, 128) for warps in (4, 8) for stages in (3, 4, 5)),
    0: tuple((bn, bt, 8, stages) for bn, bt in ((128, 64), (128, 128), (256, 64), (256, 128)) for stages in (3, 4, 5)),
}
"""For each number of rows: outputs and rows of a program, its warps and stages."""


class Wanted(NamedTuple):
    """A tile to try for the rows of a level."""

    work: Work
    level: int
    tile: Tile


def tiles(name: str, place: Place) -> Iterator[Row]:
    """Measure the products of a model, and print lines for a table."""
    chip = REHEARSED if place.is_cpu else architecture_of(place.device)
    target = target_of(chip)
    there = standing_in(target) if place.is_cpu else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder, there:
        path = write(name, Path(folder), place.pick({}, TINY))
        works = works_of(launched(functools.partial(_steps, path), chip), chip)
        works = works[: place.pick(None, 1)]
        wanted = [Wanted(work, level, tile) for work in works for level in LEVELS for tile in fitting(level, target)]
        parts = parts_of(wanted[: place.pick(None, 2)], target)
    yield Row("", f"{name}: {len(works)} products, {len(wanted)} candidates", len(parts), "kernels")
    jobs = min(16, os.cpu_count() or 1)
    refused = [one for one in compile_all(parts, place.pick(jobs, 1), launchers=not place.is_cpu) if one.error]
    yield Row("", f"{name}: refused by the compiler", len(refused), "kernels")
    if place.is_cpu:
        return
    lines: list[str] = []
    for work in works:
        for level in LEVELS:
            tried = [one.tile for one in wanted if one[:2] == (work, level)]
            line, factor = best_of(work, level, tried, DeviceBench(target), chip)
            lines.append(line)
            yield Row("", line, factor, "x as quick as the shipped one")
    with (out() / "product_tiles.txt").open("a") as file:
        file.write("\n".join(lines) + "\n")


def fitting(level: int, chip: Chip) -> Iterator[Tile]:
    """Yield the candidates of a level whose stages of 16-bit numbers fit into the chip's shared memory."""
    for bn, bt, warps, stages in CANDIDATES[level]:
        if stages * 2 * DEPTH * (bn + bt) <= chip.shared:
            yield Tile(level, bn, bt, warps, stages)


def parts_of(wanted: Sequence[Wanted], target: Chip) -> list[Part]:
    """Return what the candidates launch, each kernel once."""
    with written() as calls:
        for work, level, tile in wanted:
            Prepared(work, level, torch.device("meta")).call(tile)
    launches = dict.fromkeys(call.launch for call in calls)
    return [Part(target, launch.title, launch) for launch in launches]


def best_of(work: Work, level: int, tried: Sequence[Tile], bench: DeviceBench, chip: str) -> tuple[str, float]:
    """Return the line of the quickest tile, and how many times as quick as the shipped one it is."""
    weight = work.key.weight
    word, use = ("dense", USES[weight]) if weight in USES else (weight, "plain")
    shape = work.key.outputs, work.key.inputs
    usual = Tiles(shipped()).tile_for(chip, word, use, shape, level or 1 << 16)._replace(rows=level)
    best, before = usual, bench.seconds(work, usual, level)
    seconds = before
    for tile in tried:
        if tile != usual and bench.admits(work, tile, level):
            found = bench.seconds(work, tile, level)
            if found < seconds:
                best, seconds = tile, found
    return line_of(work.key, best), before / seconds


def _steps(path: Path, chip: str) -> None:
    words = [str(path), "--load-format", "dummy", "--skip-tokenizer-init", "--max-model-len", "2048"]
    dry_run(configured(words, chip))


def _measurement(name: str) -> Measurement:
    return Measurement(f"tiles of {name}", 265, lambda place: tiles(name, place))


MEASUREMENTS = tuple(_measurement(name) for name in NAMES)
