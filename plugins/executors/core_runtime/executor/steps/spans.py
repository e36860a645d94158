"""Parts of prompts whose tokens see each other in both directions, in one step.

Owns: the column of the last position that each row sees. Never does: decide which tokens a step computes (the scheduler keeps
a part in one step). Called by: the persistent batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from core.api.step_plan import Int32Array, Slot

Spans = Sequence[tuple[int, int]]


def sees_to(
    spans: Mapping[Slot, Spans], positions: NDArray[np.int64], slots: Int32Array, cu_seqlens: Int32Array
) -> Int32Array | None:
    """Return the last position that each row of a step sees, int32 [T]; None: its own. Raises RuntimeError for a span of which
    the step has a beginning only.

    spans: by slot. positions: int64 [T].
    """
    column: Int32Array | None = None
    for slot, begin, end in zip(slots.tolist(), cu_seqlens.tolist(), cu_seqlens[1:].tolist(), strict=False):
        for start, stop in spans.get(slot, ()):
            first, last = int(positions[begin]), int(positions[end - 1])
            if last < start or first >= stop:
                continue
            if last < stop - 1:
                raise RuntimeError(
                    f"the step ends at position {last}, within a span of the positions {start} to {stop}"
                )
            if column is None:
                column = positions[: cu_seqlens[-1]].astype(np.int32)
            column[begin + max(start - first, 0) : begin + stop - first] = stop - 1
    return column
