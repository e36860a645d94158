"""Helpers shared by the parts of a layer with a state.

Owns: the location of states, scratch buffers, tables in the kernels' format, and common launch options. Never does:
launch.
Called by: the modules next to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

CHANNEL_TILE: Final = 256
"""Channels per program."""
FLAGS: Final = {"num_warps": 4, "enable_fp_fusion": False}


@dataclass(frozen=True, slots=True)
class States:
    """The location of a layer's states. cache: float32, all blocks. words: numbers per block. window: of the
    convolution.
    """

    cache: Tensor
    words: int
    window: int


def scratch(like: Tensor, width: int) -> Tensor:
    """Allocate float32 [T, width] on the device, for one call."""
    return torch.empty(len(like), width, device=like.device)


def table(tensor: Tensor) -> Tensor:
    """Return the tensor as contiguous float32."""
    return tensor.detach().float().contiguous()
