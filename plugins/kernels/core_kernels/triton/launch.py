"""How a kernel is launched: on which chip, and with which options.

Owns: the name of a tensor's chip, and options that every launch has. Never does: choose a configuration (the kernels'
tables do). Called by: the modules that launch kernels.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from triton.runtime import driver

from core_kernels.triton import portable
from core_kernels.triton.chips import INTERPRETER, alike


@functools.cache
def architecture_of(device: torch.device) -> str:
    """A device's architecture, such as `sm_90` or `gfx942`; one process has devices of one kind."""
    if portable.INTERPRETED.value:
        return INTERPRETER
    target = driver.active.get_current_target()
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)


def chip_of(device: torch.device) -> str:
    """The kind of chip whose configurations a device takes."""
    return alike(architecture_of(device))


def options(num_warps: int, num_stages: int = 2, *, fusion: bool = True) -> dict[str, Any]:
    """Of a launch. fusion: whether a product and a sum may be rounded once."""
    return {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": fusion}


def power_of_two(number: int) -> int:
    """The least power of two that is not below a number of at least 1."""
    return 1 << (number - 1).bit_length()


def blocks(count: int, size: int) -> int:
    """How many blocks of `size` cover `count`."""
    return -(-count // size)
