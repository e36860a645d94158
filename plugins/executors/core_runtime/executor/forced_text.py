"""How forced text is divided into tokens: as the model did the last time, else as the tokenizer does.

Owns: what was learned of such texts. Never does: know grammars or sequences. Called by: `core_runtime.executor.grammars`.

A text can be divided in several ways, and the model chooses. It chooses the same way nearly always, so names of properties and
the punctuation around them are guessed right from the second time on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

MOST_TEXTS: Final = 1024
MOST_CHARACTERS: Final = 128
"""Of one text that are divided at once; behind them comes the rest."""


class ForcedTexts:
    """The texts that were forced last.

    encode: the tokens of a piece of text.
    token_bytes: the text of a token.
    """

    def __init__(self, encode: Callable[[str], list[int]], token_bytes: Callable[[int], bytes]) -> None:
        self._encode = encode
        self._token_bytes = token_bytes
        self._known: OrderedDict[str, list[int]] = OrderedDict()

    def divided(self, text: str) -> list[int]:
        """The tokens that are likely to spell the beginning of `text`."""
        known = self._known.get(text)
        if known is None:
            # the last token often becomes one with what follows
            known = self._encode(text)[:-1]
            self.learn(text, known)
        return known

    def learn(self, text: str, tokens: list[int]) -> None:
        """The model has spelled the beginning of `text` with these tokens, and the rest as part of another one."""
        self._known[text] = tokens
        self._known.move_to_end(text)
        if len(self._known) > MOST_TEXTS:
            self._known.popitem(last=False)

    def spelled(self, text: str, output: Sequence[int]) -> list[int] | None:
        """The tokens of `output` that lie wholly within `text`, with which it begins; None before all of it was written."""
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
