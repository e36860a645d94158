"""The tokens of running sequences, by slot.

Owns: prompt and output of each sequence, and the drafts behind them while a step verifies these. Never does: know what a
step computes. Called by: the persistent batch; the sampling states read their sequence's row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from core.api.step_plan import Int32Array, Slot


class TokenTable:
    """int32 [num_slots, length]; rows that no sequence reaches cost no memory.

    array: prompt, output, then drafts; what is behind them is stale.
    num_tokens: int32 [num_slots], known tokens: prompt and output.
    num_prompt_tokens: int32 [num_slots].
    """

    def __init__(self, num_slots: int, length: int) -> None:
        self.array = np.zeros((num_slots, length), np.int32)
        self.num_tokens = np.zeros(num_slots, np.int32)
        self.num_prompt_tokens = np.zeros(num_slots, np.int32)

    def start(self, slot: Slot, prompt: Sequence[int], output: Sequence[int]) -> NDArray[np.int32]:
        """A sequence takes a slot; returns its row, which grows with it."""
        row = self.array[slot]
        split = len(prompt)
        known = split + len(output)
        row[:split] = prompt
        row[split:known] = output
        self.num_prompt_tokens[slot] = split
        self.num_tokens[slot] = known
        return row

    def extend(self, slots: Int32Array, token_ids: Int32Array) -> None:
        """One new token for each of these sequences."""
        known = self.num_tokens[slots]
        self.array[slots, known] = token_ids
        self.num_tokens[slots] = known + 1

    def extend_one(self, slot: Slot, token_ids: Sequence[int]) -> None:
        """New tokens for one sequence."""
        self.write_drafts(slot, token_ids)
        self.num_tokens[slot] += len(token_ids)

    def write_drafts(self, slot: Slot, token_ids: Sequence[int]) -> None:
        """Put tokens behind the known ones, which they may become."""
        known = int(self.num_tokens[slot])
        self.array[slot, known : known + len(token_ids)] = token_ids
