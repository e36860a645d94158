"""Tokenization of forced text: as the model divided it the last time, else as the tokenizer does.

Owns: the learned tokenizations. Never does: know grammars or sequences. Called by:
`core_runtime.executor.constraints.grammars`.

A text can be divided in several ways, and the model chooses. It nearly always chooses the same way, so property names and
the punctuation around them are guessed right from the second time on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

MOST_TEXTS: Final = 1024
MOST_CHARACTERS: Final = 128
"""Maximum characters of a text that are tokenized at once; the rest comes after them."""


class ForcedTexts:
    """Recently forced texts with their tokens, at most `MOST_TEXTS`.

    encode: tokenize a piece of text.
    token_bytes: return the bytes of a token.
    """

    def __init__(self, encode: Callable[[str], list[int]], token_bytes: Callable[[int], bytes]) -> None:
        self._encode = encode
        self._token_bytes = token_bytes
        self._known: OrderedDict[str, list[int]] = OrderedDict()

    def divided(self, text: str) -> list[int]:
        """Return tokens that are likely to spell the beginning of `text`."""
        known = self._known.get(text)
        if known is None:
            # The model often merges the last token with the text after it.
            known = self._encode(text)[:-1]
            self.learn(text, known)
        return known

    def learn(self, text: str, tokens: list[int]) -> None:
        """Remember that the model spelled the beginning of `text` with these tokens, and the rest as part of another
        token.
        """
        self._known[text] = tokens
        self._known.move_to_end(text)
        if len(self._known) > MOST_TEXTS:
            self._known.popitem(last=False)

    def spelled(self, text: str, output: Sequence[int]) -> list[int] | None:
        """Return the leading tokens of `output` that lie wholly within `text`; None until all of `text` was written."""
        wanted = text.encode()
        tokens: list[int] = []
        length = 0
        for token in output:
            length += len(self._token_bytes(token))
            if length > len(wanted):
                return tokens
            tokens.append(token)
            if length == len(wanted):
                return tokens
        return None
