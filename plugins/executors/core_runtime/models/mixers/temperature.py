"""The scaling of queries by their position.

Owns: its formula. Never does: touch a query. Called by: mixers with keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core_runtime.specs.block_spec import TemperatureSpec


def temperatures(spec: TemperatureSpec, positions: Tensor) -> Tensor:
    """Return the factors of queries at positions int64 [T], as float32 [T, 1, 1]."""
    intervals = torch.div(positions + spec.shift, spec.interval, rounding_mode="floor")
    factors = 1.0 + spec.scale * torch.log1p(intervals.float())
    return factors.view(-1, 1, 1)
