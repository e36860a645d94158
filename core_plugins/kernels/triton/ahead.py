"""Kernels compiled ahead into Triton's own cache, where the launches of a start find them.

Owns: the order of compilation, and a stand-in for the driver of a chip that need not be in this machine.
Never does: launch. Called by: `core kernels build`, through the capability `ahead`.

A kernel is compiled by the call by which it is launched, up to the launch itself, so that whatever Triton puts into the name
of a cached kernel is the same in both.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Final

from core.api.errors import UserError
from core.plugin.contracts.ahead import CompiledAhead, Say
from core_plugins.kernels.triton.chips import CHIPS, Chip, alike

MOST_JOBS: Final = 16
INTEGERS: Final = {"i1": True, "i8": 3, "i16": 3, "i32": 3, "i64": 1 << 40, "u64": 1 << 63}
"""An argument of each type; 1 and multiples of 16 would be taken as something special."""


def build(chips: Sequence[str], jobs: int, say: Say) -> list[CompiledAhead]:
    """Compile every row of the catalog that these chips use; they are named `sm_90` or `gfx942`.

    Raises UserError for a chip that Triton does not compile for here, or where the interpreter was asked for.
    """
    _check()
    targets = [target_of(name) for name in chips]
    parts = [(chip, name) for chip in targets for name in row_names(chip.name)]
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


def row_names(chip: str) -> list[str]:
    """The rows that a chip uses."""
    from core_plugins.kernels.triton.catalog import kernel_rows

    return [row.name for row in kernel_rows() if alike(chip) in row.chips]


def compile_row(chip: Chip, name: str) -> CompiledAhead:
    """Compile one row for a chip, unless the cache has it."""
    import triton

    from core_plugins.kernels.triton.catalog import function_of, kernel_rows

    rows = {row.name: row for row in kernel_rows()}
    row = rows[name]
    hits: list[bool] = []
    triton.knobs.compilation.listener = lambda **told: hits.append(told["cache_hit"])
    triton.runtime.driver.set_active(_driver(chip))
    begin = time.perf_counter()
    error = ""
    try:
        options = {"num_warps": row.num_warps, "num_stages": row.num_stages, "enable_fp_fusion": row.fp_fusion}
        arguments = {name: _stand_in(kind) for name, kind in row.signature.items()}
        named = {**arguments, **row.constants, **options, **row.options}
        function_of(row).warmup(grid=(1, 1, 1), **named)
    except Exception as raised:  # a compiler may raise anything; the others are compiled all the same
        error = _sentence(raised)
    seconds = time.perf_counter() - begin
    return CompiledAhead(name, chip.name, seconds, bool(hits) and all(hits), error)


def _each(parts: Sequence[tuple[Chip, str]], jobs: int) -> Iterator[CompiledAhead]:
    """Each part, compiled by as many processes."""
    if jobs <= 1:
        for chip, name in parts:
            yield compile_row(chip, name)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        waiting = [pool.submit(compile_row, chip, name) for chip, name in parts]
        for one in waiting:
            yield one.result()


def _check() -> None:
    import triton

    if triton.knobs.runtime.interpret:
        raise UserError(
            "TRITON_INTERPRET is set: kernels are then interpreted, and there is nothing to compile; unset it."
        )


@functools.cache
def _driver(chip: Chip) -> Any:
    """A driver whose current device is such a chip, as far as a compilation asks."""
    from triton.backends.compiler import GPUTarget

    target = GPUTarget(chip.backend, chip.arch, chip.warp)

    class StandIn:
        """The questions that are asked before a launch."""

        def get_current_target(self) -> GPUTarget:
            """The chip."""
            return target

        def get_current_device(self) -> str:
            """A device of its own for each chip: kernels are remembered by it."""
            return chip.name

        def get_current_stream(self, device: str) -> int:
            """The usual one."""
            return 0

    return StandIn()


def _stand_in(kind: str) -> Any:
    """An argument of a type, as Triton writes it."""
    import torch
    from triton.runtime.jit import MockTensor

    if kind in INTEGERS:
        return INTEGERS[kind]
    if not kind.startswith("*"):
        return 0.5
    types = {
        "*fp64": torch.float64,
        "*fp32": torch.float32,
        "*fp16": torch.float16,
        "*bf16": torch.bfloat16,
        "*fp8e4nv": torch.float8_e4m3fn,
        "*fp8e5": torch.float8_e5m2,
        "*i64": torch.int64,
        "*i32": torch.int32,
        "*i16": torch.int16,
        "*i8": torch.int8,
        "*u8": torch.uint8,
        "*i1": torch.bool,
    }
    return MockTensor(types[kind])


def _sentence(error: Exception) -> str:
    """The last line of what a compiler says."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = lines[-1].strip() if lines else "without a word"
    return f"{type(error).__name__}: {said}"
