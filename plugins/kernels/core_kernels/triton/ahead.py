"""Kernels compiled ahead into Triton's own cache, where the launches of a start find them.

Owns: which kernels are compiled, and by how many processes. Never does: launch.
Called by: `core kernels build`, through the capability `ahead`.

Without a model these are the rows of the catalog, with one what it launches, written down on a device that is not there. A
kernel is compiled by the call by which it is launched, up to the launch itself, so that whatever Triton puts into the name
of a cached kernel is the same in both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Final, NamedTuple

from core.api.errors import UserError
from core_kernels.triton.chips import CHIPS, Chip, alike
from core_runtime.contracts.ahead import CompiledAhead, Run, Say

if TYPE_CHECKING:
    from core_kernels.triton.catalog import KernelRow
    from core_kernels.triton.launches import Launch

MOST_JOBS: Final = 16


class Part(NamedTuple):
    """One kernel for one chip. name: for people."""

    chip: Chip
    name: str
    launch: Launch


def build(chips: Sequence[str], jobs: int, say: Say, run: Run | None = None) -> list[CompiledAhead]:
    """Compile for chips that are named `sm_90` or `gfx942`; see `BuildAhead`.

    Raises UserError for a chip that Triton does not compile for here, or where the interpreter was asked for.
    """
    _check()
    targets = [target_of(name) for name in chips]
    parts: list[Part] = []
    for chip in targets:
        parts += catalog_parts(chip) if run is None else launched_parts(chip, run)
    done: list[CompiledAhead] = []
    for compiled in _each(parts, min(jobs, MOST_JOBS)):
        done.append(compiled)
        say(compiled, len(done), len(parts))
    return done


def target_of(name: str) -> Chip:
    """The chip of that name, which takes the configurations of one in the table. Raises UserError."""
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
    """The rows of the catalog that a chip uses."""
    from core_kernels.triton.catalog import kernel_rows

    rows = [row for row in kernel_rows() if alike(chip.name) in row.chips]
    return [Part(chip, row.name, launch_of_row(row)) for row in rows]


def launched_parts(chip: Chip, run: Run) -> list[Part]:
    """What `run` launches, each kernel once."""
    from core_kernels.triton.launches import standing_in, written

    with standing_in(chip), written() as calls:
        run(chip.name)
    launches = dict.fromkeys(call.launch for call in calls)
    return [Part(chip, launch.title, launch) for launch in launches]


def launch_of_row(row: KernelRow) -> Launch:
    """The launch that a row of the catalog stands for."""
    from core_kernels.triton.launches import Launch, kind_of_type

    arguments = tuple((name, kind_of_type(kind)) for name, kind in row.signature.items())
    options = {"num_warps": row.num_warps, "num_stages": row.num_stages, "enable_fp_fusion": row.fp_fusion}
    constants = {**row.constants, **options, **row.options}
    return Launch(row.function, arguments, tuple(constants.items()))


def compile_part(part: Part) -> CompiledAhead:
    """Compile one kernel for a chip, unless the cache has it."""
    import triton

    from core_kernels.triton.launches import compile_launch, standing_in

    hits: list[bool] = []
    error = ""
    begin = time.perf_counter()
    triton.knobs.compilation.listener = lambda **told: hits.append(told["cache_hit"])
    try:
        with standing_in(part.chip):
            compile_launch(part.launch)
    except Exception as raised:  # a compiler may raise anything; the others are compiled all the same
        error = _sentence(raised)
    finally:
        triton.knobs.compilation.listener = None
    seconds = time.perf_counter() - begin
    return CompiledAhead(part.name, part.chip.name, seconds, bool(hits) and all(hits), error)


def _each(parts: Sequence[Part], jobs: int) -> Iterator[CompiledAhead]:
    """Each part, compiled by as many processes."""
    if jobs <= 1:
        yield from map(compile_part, parts)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(compile_part, parts)


def _check() -> None:
    import triton

    if triton.knobs.runtime.interpret:
        raise UserError(
            "TRITON_INTERPRET is set: kernels are then interpreted, and there is nothing to compile; unset it."
        )


def _sentence(error: Exception) -> str:
    """The last line of what a compiler says."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = lines[-1].strip() if lines else "without a word"
    return f"{type(error).__name__}: {said}"
