"""Character offsets of the tokens of an answer in its text.

Owns: the count of characters. Never does: decide which text is shown. Called by: `core_apis.answers.completion_writer`.
"""

from __future__ import annotations

from collections.abc import Sequence

from core_tokens.detokenizer import IncrementalDetokenizer
from core_tokens.tokenizer import Tokenizer


class TextOffsets:
    """The offsets of one choice.

    before: tokens of the prompt that the text continues. skip_special_tokens: as in the text.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int], skip_special_tokens: bool) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, before, skip_special_tokens)
        self._num_characters = 0

    def take(self, token_ids: Sequence[int]) -> list[int]:
        """Return the number of characters before each of the next tokens; tokens that share a character begin where it
        begins.
        """
        offsets = []
        for token_id in token_ids:
            offsets.append(self._num_characters)
            self._num_characters += len(self._detokenizer.push([token_id]))
        return offsets
