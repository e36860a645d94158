"""What an answer carries besides its tokens, gathered from what the engine tells with them.

Owns: the sampling masks and the experts of one completion. Never does: compute them. Called by: `CompletionState`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core_frontend.api.outputs import SamplingMask
from core_tokens.answer_facts import ChosenExperts, decode_facts, token_lists, whole_choice


class ToldFacts:
    """The facts of one completion. num_prompt_tokens: length of its prompt."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._supports: list[list[int]] = []
        self._experts: list[ChosenExperts] = []

    def add(self, message: bytes, start: int, num_kept: int) -> None:
        """Add the facts of one output: of the tokens from `start` on, of which the first `num_kept` are kept."""
        facts = decode_facts(message)
        if facts.supports:
            unknown = start - len(self._supports)
            self._supports += [[] for _ in range(unknown)]  # of an answer that began elsewhere
            self._supports += token_lists(facts.supports[:num_kept])
        self._experts += facts.experts

    def mask(self, start: int) -> SamplingMask | None:
        """Return the masks from token `start` on; None if the engine tells none."""
        return SamplingMask(self._supports[start:]) if self._supports else None

    def experts(self, num_tokens: int) -> NDArray[np.int16] | None:
        """Return the experts of prompt and answer, as in `CompletionOutput`; None if the engine tells none.

        num_tokens: of the answer. Its last token was drawn, and never computed.
        """
        return whole_choice(self._experts, max(self._num_prompt_tokens + num_tokens - 1, 0))
