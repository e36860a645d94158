"""A sequence to pool, between its chunks.

Owns: `Pooled`. Never does: compute. Called by: the persistent batch (holds one a slot), `core.executor.pooled` (fills it).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.api.pooling import Pooling


@dataclass(slots=True)
class Pooled:
    """What is known of one sequence.

    pooling: what it asks for.
    total: float64 [H], the sum of the hidden states so far, for a mean.
    parts: float32 [n, H] each, where every token counts.
    one: float32 [H], of the one token that counts.
    """

    pooling: Pooling
    total: NDArray[np.float64] | None = None
    parts: list[NDArray[np.float32]] = field(default_factory=list)
    one: NDArray[np.float32] | None = None
