"""Every Triton kernel with every configuration in which it is launched, as rows.

Owns: the form of a row, and the list of modules that have some. Never does: compile or launch.
Called by: the gate (it compiles all rows for all chips), the command that compiles kernels ahead.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from core_kernels.triton.chips import NAMES

MODULES: Final = (
    "core_kernels.triton.race",
    "core_kernels.triton.logprobs",
    "core_kernels.triton.norm",
    "core_kernels.triton.rotary",
    "core_kernels.triton.activation",
    "core_kernels.triton.elementwise",
    "core_kernels.triton.product_rows",
    "core_kernels.triton.int8_product",
    "core_kernels.triton.embedding",
    "core_kernels.triton.rounding",
    "core_kernels.triton.combine",
    "core_kernels.triton.route",
    "core_attention.triton.rows",
    "core_attention.triton.states.rows",
)
"""Modules with kernels; each has `ROWS`."""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel and one configuration of it.

    name: for people; unique.
    function: `module:name` of the function that Triton compiles.
    signature: types of its arguments that are not constants, as Triton writes them: `*bf16`, `i32`, `fp32`.
    constants: values of the others, those of arguments that are absent (None) among them.
    chips: names of the chips on which the configuration is used.
    num_warps: of a program.
    num_stages: of its pipelines.
    fp_fusion: whether a product and a sum may become one instruction, which rounds once.
    uses_mma: the matrix units must be used.
    no_fma: no fused multiplication and addition may be left.
    options: further ones of the compiler.
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
    """All rows. Imports triton. Raises ValueError when two have one name."""
    found: dict[str, KernelRow] = {}
    for module in MODULES:
        rows: tuple[KernelRow, ...] = importlib.import_module(module).ROWS
        for row in rows:
            if row.name in found:
                raise ValueError(f"two kernels are called '{row.name}'; rename one in {module}")
            found[row.name] = row
    return tuple(found.values())


def function_of(row: KernelRow) -> Any:
    """The function that Triton compiles."""
    module, _, name = row.function.partition(":")
    return getattr(importlib.import_module(module), name)
