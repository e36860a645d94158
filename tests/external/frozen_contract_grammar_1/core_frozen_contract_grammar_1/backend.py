"""The backend: its data are the choices as JSON, and a matcher compares them with the bytes of the answer so far."""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from core.api.structured_outputs import GrammarSpec
from core.plugin.contracts import GrammarVocabulary


class Backend:
    """Implements `core.plugin.contracts.GrammarBackend`."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.vocabulary = vocabulary

    def compile(self, spec: GrammarSpec) -> bytes:
        """Nothing to do: a list of choices is its own compiled form."""
        return spec.text.encode()

    def matcher(self, data: bytes) -> Matcher:
        """A matcher at the beginning."""
        choices = [text.encode() for text in json.loads(data)]
        return Matcher(self.vocabulary, choices)


class Matcher:
    """Implements `core.plugin.contracts.Matcher`."""

    def __init__(self, vocabulary: GrammarVocabulary, choices: list[bytes]) -> None:
        self.vocabulary = vocabulary
        self.choices = choices
        self.stops = frozenset(vocabulary.stop_ids)
        self.taken: list[int] = []

    def fill(self, words: NDArray[np.int32]) -> bool:
        """Set the bits of the tokens that may come next."""
        allowed = np.zeros(32 * len(words), bool)
        for token in range(len(self.vocabulary.tokens)):
            allowed[token] = self.may_come(token)
        words[:] = np.packbits(allowed, bitorder="little").view(np.int32)
        return True

    def accept(self, token_id: int) -> bool:
        """Take one token in, if it may come."""
        if not self.may_come(token_id):
            return False
        self.taken.append(token_id)
        return True

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        del self.taken[len(self.taken) - num_tokens :]

    @property
    def is_terminated(self) -> bool:
        """Whether a stop token was accepted."""
        return bool(self.taken) and self.taken[-1] in self.stops

    def may_come(self, token_id: int) -> bool:
        """Whether a token goes on with one of the choices, or ends one."""
        if self.is_terminated:
            return False
        text = b"".join([self.vocabulary.tokens[token] for token in self.taken])
        if token_id in self.stops:
            return text in self.choices
        more = self.vocabulary.tokens[token_id]
        return bool(more) and any(choice.startswith(text + more) for choice in self.choices)
