"""The log probabilities of a prompt for users, translated lazily when they are read.

Owns: `PromptLogprobs`. Never does: compute them. Called by: the output processor, which must not wait for the
translation of thousands of positions: every stream of a server would wait with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from core.api.messages import TokenLogprobs
from core_frontend.api.outputs import PositionLogprobs
from core_frontend.completion_state import position_logprobs
from core_tokens.tokenizer import Tokenizer

FREED_AT_ONCE = 512


class PromptLogprobs(Sequence[PositionLogprobs | None]):
    """The log probabilities of one prompt: one entry for each token, the first one None. Slices are lists.

    entries: from the second token on.
    tokenizer: None leaves out the tokens' texts.
    """

    def __init__(self, entries: list[TokenLogprobs], tokenizer: Tokenizer | None) -> None:
        self._entries = entries
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._entries) + 1

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[PositionLogprobs | None]: ...
    def __getitem__(self, index: int | slice) -> PositionLogprobs | list[PositionLogprobs | None] | None:
        positions = range(len(self))[index]
        if isinstance(positions, int):
            return self._at(positions)
        return [self._at(position) for position in positions]

    def free(self) -> None:
        """Free all positions, a few at a time, so that other threads can run.

        Call it when they are no longer needed.
        """
        while self._entries:
            del self._entries[-FREED_AT_ONCE:]

    def _at(self, position: int) -> PositionLogprobs | None:
        return position_logprobs(self._entries[position - 1], self._tokenizer) if position else None
