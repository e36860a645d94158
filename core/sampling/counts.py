"""Token counts of one sequence, kept incrementally for the penalties.

Owns: which tokens occurred in prompt or output, and how often in the output. Never does: touch logits.
Called by: `core.sampling.state`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """Distinct tokens of prompt and output in order of appearance, each with its count in the output."""

    __slots__ = ("_counts", "_ids", "_slots")

    def __init__(self, prompt_token_ids: Iterable[int]) -> None:
        distinct = dict.fromkeys(prompt_token_ids)
        self._slots = {token: slot for slot, token in enumerate(distinct)}
        self._ids = list(distinct)
        self._counts = [0] * len(self._ids)

    def add(self, token_ids: Iterable[int]) -> None:
        """Count output tokens."""
        for token in token_ids:
            slot = self._slots.get(token)
            if slot is None:
                self._slots[token] = len(self._ids)
                self._ids.append(token)
                self._counts.append(1)
            else:
                self._counts[slot] += 1

    def copy(self) -> TokenCounts:
        """An independent copy, to count drafts that may be rejected."""
        other = TokenCounts(())
        other._slots, other._ids, other._counts = dict(self._slots), list(self._ids), list(self._counts)
        return other

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(ids int64 [n], their counts in the output float32 [n])."""
        return np.array(self._ids, dtype=np.int64), np.array(self._counts, dtype=np.float32)
