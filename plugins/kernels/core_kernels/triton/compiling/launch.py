"""Launch settings of kernels: the chip, and the options.

Owns: the chip name of a tensor's device, and the options common to all launches. Never does: choose a configuration
(the kernels' tables do). Called by: the modules that launch kernels.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from triton.runtime import driver

from core_kernels.triton import portable
from core_kernels.triton.compiling.chips import INTERPRETER, alike, starts_early


@functools.cache
def architecture_of(device: torch.device) -> str:
    """Return a device's architecture, such as `sm_90` or `gfx942`; one process uses devices of one kind."""
    if portable.INTERPRETED.value:
        return INTERPRETER
    target = driver.active.get_current_target()
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)


def chip_of(device: torch.device) -> str:
    """Return the chip family whose configurations a device uses."""
    return alike(architecture_of(device))


def options(num_warps: int, num_stages: int = 2, *, fusion: bool = True) -> dict[str, Any]:
    """Return launch options. fusion: whether a product and a sum may be rounded together."""
    return {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": fusion}


def start(device: torch.device, early: bool) -> dict[str, Any]:
    """Return the arguments by which a kernel with an `EARLY` is launched before the previous one has ended, if that is
    wanted and the device can do it; see `portable.begin`.
    """
    if early and starts_early(architecture_of(device)):
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number` (at least 1)."""
    return 1 << (number - 1).bit_length()


def blocks(count: int, size: int) -> int:
    """Return the number of blocks of `size` that cover `count`."""
    return -(-count // size)
