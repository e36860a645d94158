"""The tokens that structural tags refer to.

Owns: their ids, and the set allowed in an answer. Never does: read a tag. Called by: `tags`, `tag_formats`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core_grammars.contract import GrammarVocabulary
from core_grammars.llguidance.pieces import Piece, Span, Text


class TagTokens:
    """The tokens of a vocabulary. without_text: tokens without text."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        specials = vocabulary.specials
        silent = (index for index, text in enumerate(vocabulary.tokens) if not text)
        self.without_text = frozenset(silent)
        self._stops = frozenset(vocabulary.stop_ids)
        self._size = len(vocabulary.tokens)
        self._unused = self.without_text.difference(specials).union(self._stops)

    def token(self, value: Any) -> int:
        """Return the id of a token that a tag names."""
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < self._size:
            raise ValueError(f"the structural tag names the token {value!r}, which is none")
        if value in self._stops:
            raise ValueError(f"the structural tag names the token {value!r}, which ends the answer")
        return value

    def all_but(self, left_out: Iterable[int], least: int, most: int | None) -> Piece:
        """Return a run of tokens allowed in an answer, except these."""
        return Text("") if most == 0 else Span(self._unused.union(left_out), least, most)
