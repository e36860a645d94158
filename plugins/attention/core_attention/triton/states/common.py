"""What the parts of a layer with a state share.

Owns: where the states lie, numbers of one call, tables as kernels take them, and options of every launch. Never does: launch.
Called by: the parts beside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

CHANNEL_TILE: Final = 256
"""Channels of a program."""
FLAGS: Final = {"num_warps": 4, "enable_fp_fusion": False}


@dataclass(frozen=True, slots=True)
class States:
    """Where a layer's states lie. cache: float32, all blocks. words: numbers of a block. window: of the convolution."""

    cache: Tensor
    words: int
    window: int


def scratch(like: Tensor, width: int) -> Tensor:
    """float32 [T, width] on the device, for one call."""
    return torch.empty(len(like), width, device=like.device)


def table(tensor: Tensor) -> Tensor:
    """float32, contiguous."""
    return tensor.detach().float().contiguous()
