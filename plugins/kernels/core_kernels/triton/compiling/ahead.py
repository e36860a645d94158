"""Ahead-of-time compilation of kernels into Triton's own cache, so that startup finds them compiled.

Owns: the choice of kernels to compile, and the number of processes. Never does: launch.
Called by: `core kernels build`, through the capability `ahead`.

Without a model these are the rows of the catalog; with a model, the launches it makes, recorded on a stand-in device. A
kernel is compiled through the same call that launches it, stopping before the launch, so that Triton computes the same
cache key in both cases.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Final, NamedTuple

from core.api.errors import UserError
from core_kernels.triton.compiling.chips import CHIPS, Chip, alike
from core_runtime.contracts.ahead import CompiledAhead, Run, Say

if TYPE_CHECKING:
    from core_kernels.triton.compiling.catalog import KernelRow
    from core_kernels.triton.compiling.launches import Launch

MOST_JOBS: Final = 16


class Part(NamedTuple):
    """One kernel for one chip. name: for messages."""

    chip: Chip
    name: str
    launch: Launch


def build(chips: Sequence[str], jobs: int, say: Say, run: Run | None = None) -> list[CompiledAhead]:
    """Compile for chips named like `sm_90` or `gfx942`; see `BuildAhead`.

    Raises UserError for a chip that this Triton cannot compile for, or when the interpreter is selected.
    """
    _check()
    targets = [target_of(name) for name in chips]
    parts: list[Part] = []
    for chip in targets:
        parts += catalog_parts(chip) if run is None else launched_parts(chip, run)
    done: list[CompiledAhead] = []
    for compiled in compile_all(parts, min(jobs, MOST_JOBS)):
        done.append(compiled)
        say(compiled, len(done), len(parts))
    return done


def target_of(name: str) -> Chip:
    """Return the chip of a name, with the configurations of the chip in the table that it resembles. Raises UserError."""
    digits = name.removeprefix("sm_")
    if name.startswith("gfx") and alike(name).startswith("gfx"):
        like = next(chip for chip in CHIPS if chip.name == alike(name))
        return Chip(name, like.backend, name, like.warp, like.shared, like.matrix)
    if not digits.isdigit() or int(digits) < 80:
        known = ", ".join(chip.name for chip in CHIPS)
        raise UserError(f"chip '{name}': expected one such as {known}; kernels are compiled for sm_80 and newer.")
    full = f"sm_{digits}"
    like = next(chip for chip in CHIPS if chip.name == alike(full))
    return Chip(full, like.backend, int(digits), like.warp, like.shared, like.matrix)


def catalog_parts(chip: Chip) -> list[Part]:
    """Return the catalog rows that a chip uses."""
    from core_kernels.triton.compiling.catalog import for_chip, kernel_rows

    capability = int(chip.arch) if chip.backend == "cuda" else 0
    used = [row for row in kernel_rows() if alike(chip.name) in row.chips and row.least <= capability]
    rows = [for_chip(row, chip.name) for row in used]
    return [Part(chip, row.name, launch_of_row(row)) for row in rows]


def launched_parts(chip: Chip, run: Run) -> list[Part]:
    """Return the kernels that `run` launches, each once."""
    from core_kernels.triton.compiling.launches import standing_in, written

    with standing_in(chip), written() as calls:
        run(chip.name)
    launches = dict.fromkeys(call.launch for call in calls)
    return [Part(chip, launch.title, launch) for launch in launches]


def launch_of_row(row: KernelRow) -> Launch:
    """Return the launch described by a catalog row."""
    from core_kernels.triton.compiling.catalog import types_of
    from core_kernels.triton.compiling.launches import Launch, kind_of_type

    arguments = tuple((name, kind_of_type(kind)) for name, kind in types_of(row).items())
    options = {"num_warps": row.num_warps, "num_stages": row.num_stages, "enable_fp_fusion": row.fp_fusion}
    constants = {**row.constants, **options, **row.options}
    return Launch(row.function, arguments, tuple(constants.items()))


def compile_part(part: Part, launchers: bool = False) -> CompiledAhead:
    """Compile one kernel for a chip, unless it is cached. launchers: see `compile_all`."""
    import triton

    from core_kernels.triton.compiling.launches import build_launcher, compile_launch, standing_in

    hits: list[bool] = []
    error = ""
    begin = time.perf_counter()
    triton.knobs.compilation.listener = lambda **told: hits.append(told["cache_hit"])
    try:
        with standing_in(part.chip):
            kernel = compile_launch(part.launch)
        if launchers:
            build_launcher(part.chip.backend, kernel)
    except Exception as raised:  # a compiler may raise anything; the other kernels are still compiled
        error = _sentence(raised)
    finally:
        triton.knobs.compilation.listener = None
    seconds = time.perf_counter() - begin
    return CompiledAhead(part.name, part.chip.name, seconds, bool(hits) and all(hits), error)


def compile_all(parts: Sequence[Part], jobs: int, *, launchers: bool = False) -> Iterator[CompiledAhead]:
    """Compile the parts in up to `jobs` processes, and yield each result.

    launchers: whether the functions that launch them are compiled as well, which needs the driver's library.
    """
    compile_one = functools.partial(compile_part, launchers=launchers)
    if jobs <= 1:
        yield from map(compile_one, parts)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(compile_one, parts)


def _check() -> None:
    import triton

    if triton.knobs.runtime.interpret:
        raise UserError(
            "TRITON_INTERPRET is set: kernels are then interpreted, and there is nothing to compile; unset it."
        )


def _sentence(error: Exception) -> str:
    """Return the last line of a compiler's message."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = lines[-1].strip() if lines else "without a word"
    return f"{type(error).__name__}: {said}"
