"""The catalog: every Triton kernel with every configuration in which it is launched, as rows.

Owns: the form of a row, and the list of modules with rows. Never does: compile or launch.
Called by: the gate (it compiles all rows for all chips), the command that compiles kernels ahead.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from core_kernels.triton.compiling.chips import NAMES, starts_early

MODULES: Final = (
    "core_kernels.triton.sampler.race",
    "core_kernels.triton.sampler.logprobs",
    "core_kernels.triton.norm",
    "core_kernels.triton.rotary",
    "core_kernels.triton.activation",
    "core_kernels.triton.elementwise",
    "core_kernels.triton.products.rows",
    "core_kernels.triton.products.int8",
    "core_kernels.triton.products.assign",
    "core_kernels.triton.embedding",
    "core_kernels.triton.products.rounding",
    "core_kernels.triton.combine",
    "core_kernels.triton.route",
    "core_kernels.triton.low_rank",
    "core_attention.triton.rows",
    "core_attention.triton.states.rows",
)
"""Modules with kernels; each defines `ROWS`."""
MULTIPLE: Final = ":16"
"""Triton's mark for a multiple of 16."""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel and one configuration of it.

    name: unique, for messages.
    function: `module:name` of the Triton function.
    signature: types of its non-constant arguments in Triton's notation: `*bf16`, `i32`, `fp32`; see `types_of`.
    constants: values of the other arguments, with None for absent ones; `EARLY` is false, see `for_chip`.
    chips: names of the chips on which the configuration is used. num_warps, num_stages: of a program.
    fp_fusion: whether a product and a sum may become one instruction, which rounds once.
    uses_mma: the code must use the matrix units.
    no_fma: the code must not contain fused multiply-adds.
    reads: bytes of each tile that a program, or one step of its loop, reads; the code must read them in accesses as wide
        as the threads' shares allow, up to 16 bytes, and with 3 stages or more copy them ahead into shared memory.
    resident: programs for which a multiprocessor must have registers and shared memory at once.
    whole_rows: each row of a product must lie in one warp, so that tiles with more rows and warps sum it in the same order.
    least: lowest compute capability of NVIDIA's chips that launch it; 0: any.
    holds: patterns that the assembly must match.
    decodes: numbers that a program decodes in one step of its loop; `most_each`: instructions for each of them, at most.
    options: further compiler options.
    """

    name: str
    function: str
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    chips: tuple[str, ...] = NAMES
    num_warps: int = 4
    num_stages: int = 2
    fp_fusion: bool = True
    uses_mma: bool = False
    no_fma: bool = False
    reads: tuple[int, ...] = ()
    resident: int = 1
    whole_rows: bool = False
    least: int = 0
    holds: tuple[str, ...] = ()
    decodes: int = 0
    most_each: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


def kernel_rows() -> tuple[KernelRow, ...]:
    """Return all rows. Imports triton. Raises ValueError for duplicate names."""
    found: dict[str, KernelRow] = {}
    for module in MODULES:
        rows: tuple[KernelRow, ...] = importlib.import_module(module).ROWS
        for row in rows:
            if row.name in found:
                raise ValueError(f"two kernels are called '{row.name}'; rename one in {module}")
            found[row.name] = row
    return tuple(found.values())


def for_chip(row: KernelRow, chip: str) -> KernelRow:
    """Return a row as a chip launches it: early where both the kernel and the chip can do that."""
    if "EARLY" not in row.constants or not starts_early(chip):
        return row
    return replace(row, constants={**row.constants, "EARLY": True}, options={**row.options, "launch_pdl": True})


def function_of(row: KernelRow) -> Any:
    """Return the Triton function of a row."""
    module, _, name = row.function.partition(":")
    return getattr(importlib.import_module(module), name)


def size_of(kind: str) -> int:
    """Return the bytes of a number of Triton's type `bf16`, `*fp32`, `u8`."""
    return int(re.sub(r"\D", "", kind)) // 8


def types_of(row: KernelRow) -> dict[str, str]:
    """Return the types of a row's signature as launches of common models have them.

    `:16` marks addresses and integers that are multiples of 16: all tensors, and the integers for which the kernel is
    specialized. These are strides and widths, and only with them does the compiler know that a row of numbers can be
    read 16 bytes at a time.
    """
    special = {param.name for param in function_of(row).params if not param.do_not_specialize}
    found = {}
    for name, kind in row.signature.items():
        is_multiple = kind.startswith("*") or (kind.startswith("i") and name in special)
        found[name] = f"{kind}{MULTIPLE}" if is_multiple else kind
    return found
