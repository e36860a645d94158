"""The catalog: every Triton kernel with every configuration in which it is launched, as rows.

Owns: the form of a row, and the list of modules with rows. Never does: compile or launch.
Called by: the gate (it compiles all rows for all chips), the command that compiles kernels ahead.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from core_kernels.triton.compiling.chips import NAMES

MODULES: Final = (
    "core_kernels.triton.sampler.race",
    "core_kernels.triton.sampler.logprobs",
    "core_kernels.triton.norm",
    "core_kernels.triton.rotary",
    "core_kernels.triton.activation",
    "core_kernels.triton.elementwise",
    "core_kernels.triton.products.rows",
    "core_kernels.triton.products.int8",
    "core_kernels.triton.embedding",
    "core_kernels.triton.products.rounding",
    "core_kernels.triton.combine",
    "core_kernels.triton.route",
    "core_attention.triton.rows",
    "core_attention.triton.states.rows",
)
"""Modules with kernels; each defines `ROWS`."""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel and one configuration of it.

    name: unique, for messages.
    function: `module:name` of the Triton function.
    signature: types of its non-constant arguments in Triton's notation: `*bf16`, `i32`, `fp32`.
    constants: values of the other arguments, with None for absent ones.
    chips: names of the chips on which the configuration is used. num_warps, num_stages: of a program.
    fp_fusion: whether a product and a sum may become one instruction, which rounds once.
    uses_mma: the code must use the matrix units.
    no_fma: the code must not contain fused multiply-adds.
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


def function_of(row: KernelRow) -> Any:
    """Return the Triton function of a row."""
    module, _, name = row.function.partition(":")
    return getattr(importlib.import_module(module), name)
