"""A grammar backend whose grammars are regular expressions over the text of an answer, slow and plain, and its requests."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import regex
from tokenizers import pre_tokenizers

from core import LLM, SamplingParams
from core.api.structured_outputs import CompiledGrammar
from core_frontend.api.outputs import RequestOutput
from core_runtime.executor.constraints.grammar_backends import GrammarBackends
from core_runtime.sampling.bitmask import bitmask_of
from tests.inside import run_entries, with_grammar

EOS = 2
NUM_SPECIAL = 4
VOCAB = 260
NAME = "regex"


def byte_texts() -> tuple[str, ...]:
    """The text of each token of `tiny_models.byte_tokenizer`, empty for special ones; bytes stand for themselves."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    of_char = {chr(byte): chr(byte) for byte in printable}
    for place, byte in enumerate(others):
        of_char[chr(256 + place)] = chr(byte)
    return ("",) * NUM_SPECIAL + tuple(of_char[char] for char in alphabet)


@cache
def allowed_tokens(pattern: regex.Pattern, text: str, texts: tuple[str, ...]) -> frozenset[int]:
    """The tokens that may come behind a text."""
    allowed = {token for token, more in enumerate(texts) if more and pattern.fullmatch(text + more, partial=True)}
    if pattern.fullmatch(text):
        allowed.add(EOS)
    return frozenset(allowed)


class RegexMatcher:
    """Implements `Matcher` and `ForcesTokens`.

    texts: of each token.
    """

    def __init__(self, pattern: str, texts: tuple[str, ...]) -> None:
        self.pattern = regex.compile(pattern)
        self.texts = texts
        self.tokens: list[int] = []
        self.num_rolled_back = 0

    @property
    def is_terminated(self) -> bool:
        return EOS in self.tokens

    def fill(self, words) -> bool:
        assert not self.is_terminated
        allowed = allowed_tokens(self.pattern, self._text(), self.texts)
        words[:] = bitmask_of(allowed, len(self.texts))
        return True

    def accept(self, token_id: int) -> bool:
        assert not self.is_terminated
        if token_id not in allowed_tokens(self.pattern, self._text(), self.texts):
            return False
        self.tokens.append(token_id)
        return True

    def rollback(self, num_tokens: int) -> None:
        assert 0 < num_tokens <= len(self.tokens)
        del self.tokens[-num_tokens:]
        self.num_rolled_back += num_tokens

    def forced(self) -> str:
        forced = ""
        while True:
            text = self._text() + forced
            if self.pattern.fullmatch(text):
                return forced
            following = [c for c in map(chr, range(256)) if self.pattern.fullmatch(text + c, partial=True)]
            if len(following) != 1:
                return forced
            forced += following[0]

    def _text(self) -> str:
        return "".join(self.texts[token] for token in self.tokens)


class RegexBackend:
    """Implements the worker's part of `GrammarBackend`: data are expressions.

    made: all matchers.
    """

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.texts = texts
        self.made: list[RegexMatcher] = []

    def matcher(self, data: bytes) -> RegexMatcher:
        made = RegexMatcher(data.decode(), self.texts)
        self.made.append(made)
        return made


def install(monkeypatch: pytest.MonkeyPatch, backend: object | None = None) -> RegexBackend:
    """Have workers use this backend for all grammars."""
    chosen = RegexBackend(byte_texts()) if backend is None else backend
    monkeypatch.setattr(GrammarBackends, "load", lambda self, name: chosen)
    return chosen


def compiled(pattern: str) -> CompiledGrammar:
    return CompiledGrammar(NAME, pattern, pattern.encode())


def generate(
    llm: LLM, prompts: Sequence[str], params: Sequence[SamplingParams], patterns: Sequence[str | None]
) -> list[RequestOutput]:
    """As `LLM.generate`, with a grammar for each prompt that has an expression."""
    entries = []
    for index, (prompt, asked, pattern) in enumerate(zip(prompts, params, patterns, strict=True)):
        grammar = None if pattern is None else compiled(pattern)
        entries.append(with_grammar(llm, f"grammar-{index}", prompt, asked, grammar))
    return run_entries(llm, entries)


def text_of(tokens: Sequence[int]) -> str:
    texts = byte_texts()
    return "".join(texts[token] for token in np.array(tokens).tolist())
