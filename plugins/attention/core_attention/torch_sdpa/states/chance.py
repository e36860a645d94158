"""Numbers of states rounded up or down by chance, so that what many tokens add is right on average.

Owns: the rounding, and the noise that decides it. Never does: know an op, or keep a generator's state.
Called by: the recurrence.

The noise of a number is a function of the token's position and of the number's place in the state, so a request has the same
states however its tokens are cut into steps, alone, after a preemption and from a cache.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from torch import Tensor

from core_runtime.sampling.philox import philox4x32

KEY: Final = np.array([[0x5A17E5], [0xC4A2CE]], dtype=np.uint64)
"""Key of the noise, which no other noise of an engine has."""
WORDS: Final = 4


def rounded_by_chance(x: Tensor, dtype: torch.dtype, positions: Tensor) -> Tensor:
    """Return float32 x [n, ...] as numbers of a 16-bit type: one of both neighbours, the nearer one more often.

    positions: int64 [n], of the token after which each state is rounded.
    Numbers beyond the type's largest become that; NaN stays.
    """
    largest = torch.finfo(dtype).max
    size = x.abs().clamp(max=largest)
    near = size.to(dtype)
    bits = near.view(torch.int16)
    low = torch.where(near.float() > size, bits - 1, bits)
    below = low.view(dtype).float()
    # The number after the largest is infinite; nothing lies between them.
    above = torch.where(below < largest, (low + 1).view(dtype).float(), below)
    gap = above - below
    share = torch.where(gap > 0, (size - below) / gap.clamp(min=torch.finfo(torch.float32).tiny), 0)
    up = noise(positions, math.prod(x.shape[1:])).view(x.shape).to(x.device) < share
    rounded = torch.where(up, above, below).copysign(x)
    return torch.where(x.isnan(), x, rounded)


def noise(positions: Tensor, count: int) -> Tensor:
    """Return float32 [n, count] in [0, 1) for the numbers of a state after tokens at these positions, int64 [n]."""
    blocks = -(-count // WORDS)
    at = positions.cpu().numpy().astype(np.uint64)
    counter = np.zeros((4, len(at) * blocks), dtype=np.uint64)
    counter[0] = np.tile(np.arange(blocks, dtype=np.uint64), len(at))
    counter[1] = np.repeat(at, blocks)
    words = philox4x32(counter, KEY).reshape(len(at), blocks * WORDS)[:, :count]
    # 24 bits, which float32 holds: a share of 1 is then always more.
    return torch.from_numpy((words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24))
