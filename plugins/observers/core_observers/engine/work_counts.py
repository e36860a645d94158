"""What the steps of an engine have computed, in numbers from which their work follows.

Owns: `WorkCounts`. Never does: know a model's shapes. Called by: the count of steps.

Names are those of `core_observers.work`: `steps`, `tokens` and `sampled` (rows that got a token) are counted once. For layers
that see all keys, and for each width of a sliding window (0: no window), `pairs:WIDTH` is the number of keys that all tokens
saw, and `keys:WIDTH` the number of keys that all rows read, since the tokens of a chunk share them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from core.scheduler.step import Step
from core_observers.work import SAMPLED, STEPS, TOKENS, keys_of, pairs_of


class WorkCounts:
    """The counts of one engine. windows: widths of the model's sliding windows. counts: by name, since the start."""

    def __init__(self, windows: Iterable[int] = ()) -> None:
        self._windows = sorted(set(windows))
        self.counts = dict.fromkeys((STEPS, TOKENS, SAMPLED), 0)
        for window in (0, *self._windows):
            self.counts[pairs_of(window)] = self.counts[keys_of(window)] = 0

    def add(self, step: Step) -> None:
        """Count a step that is done."""
        plan, counts = step.plan, self.counts
        counts[STEPS] += 1
        counts[TOKENS] += plan.total_num_tokens
        counts[SAMPLED] += step.num_decodes + sum(chunk.completes for chunk in step.chunks)
        before = plan.num_computed.astype(np.int64)
        new = plan.query_lens.astype(np.int64)
        after = before + new
        counts[pairs_of(0)] += int(np.dot(new, before) + np.dot(new, new + 1) // 2)
        counts[keys_of(0)] += int(after.sum())
        for window in self._windows:
            # Tokens whose window is not full yet see all keys; all others see as many as it is wide.
            growing = np.clip(window - before, 0, new)
            seen = growing * before + growing * (growing + 1) // 2 + (new - growing) * window
            counts[pairs_of(window)] += int(seen.sum())
            counts[keys_of(window)] += int(np.minimum(after, window - 1 + new).sum())
