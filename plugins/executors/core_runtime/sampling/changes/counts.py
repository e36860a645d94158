"""Token counts of one sequence, updated incrementally for the penalties.

Owns: which tokens occurred in prompt or output, and how often in the output. Never does: touch logits.
Called by: `core_runtime.sampling.state`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from core_runtime.sampling.noise import Float32, Ids


class TokenCounts:
    """Distinct tokens of prompt and output in order of appearance, each with its count in the output.

    num_output: number of output tokens counted.
    """

    __slots__ = ("_counts", "_ids", "_places", "num_output")

    def __init__(self, prompt_token_ids: Iterable[int]) -> None:
        distinct = dict.fromkeys(prompt_token_ids)
        self._places = {token: place for place, token in enumerate(distinct)}
        # Room to grow: arrays are doubled, so that adding a token costs constant time on average.
        room = 2 * len(distinct) + 64
        self._ids: Ids = np.empty(room, dtype=np.int64)
        self._ids[: len(distinct)] = list(distinct)
        self._counts: Float32 = np.zeros(room, dtype=np.float32)
        self.num_output = 0

    def add(self, token_ids: Sequence[int]) -> None:
        """Count more output tokens."""
        for token in token_ids:
            # Placing a new token may replace both arrays, so it comes before the lookup of `_counts`.
            place = self._place(token)
            self._counts[place] += 1
        self.num_output += len(token_ids)

    def arrays(self, drafts: Sequence[int] = ()) -> tuple[Ids, Float32]:
        """Return ids int64 [n] and their output counts float32 [n], valid until the next call.

        drafts: tokens that count as output in this call only.
        """
        known = len(self._places)
        ids = self._ids[:known]
        counts = self._counts[:known]
        if not drafts:
            return ids, counts
        counts = counts.copy()
        fresh: dict[int, int] = {}
        for token in drafts:
            place = self._places.get(token)
            if place is None:
                fresh[token] = fresh.get(token, 0) + 1
            else:
                counts[place] += 1
        fresh_ids = np.array(list(fresh), dtype=np.int64)
        fresh_counts = np.array(list(fresh.values()), dtype=np.float32)
        all_ids = np.concatenate((ids, fresh_ids))
        all_counts = np.concatenate((counts, fresh_counts))
        return all_ids, all_counts

    def _place(self, token: int) -> int:
        place = self._places.get(token)
        if place is not None:
            return place
        place = len(self._places)
        if place == len(self._ids):
            more_ids = np.empty_like(self._ids)
            more_counts = np.zeros_like(self._counts)
            self._ids = np.concatenate((self._ids, more_ids))
            self._counts = np.concatenate((self._counts, more_counts))
        self._places[token] = place
        self._ids[place] = token
        return place
