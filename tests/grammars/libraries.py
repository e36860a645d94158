"""The libraries behind the grammar plugins, asked directly: which texts they let through.

Owns: compiling as the plugins do. Never does: judge a schema. Called by: the tests of the tables, `tests.grammars.prove`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.grammars.honoured import HonouredTable, read_table
from core_plugins.grammars.llguidance.json_text import NEEDED_ESCAPES
from core_plugins.grammars.xgrammar.json_text import one_spelling

PLUGINS = Path(__file__).parents[2] / "core_plugins" / "grammars"
NAMES = ("xgrammar", "llguidance")

Accepts = Callable[[str], bool]


class Refused(Exception):
    """The library itself refuses the schema."""


@cache
def table(name: str) -> HonouredTable:
    return read_table(PLUGINS / name / "honoured.toml")


def acceptor(name: str, schema: Any) -> Accepts:
    """Whether a text is let through, byte by byte. Raises Refused."""
    return {"xgrammar": _xgrammar_acceptor, "llguidance": _llguidance_acceptor}[name](json.dumps(schema))


def xgrammar_grammar(schema: str) -> Any:
    import xgrammar

    try:
        grammar = xgrammar.Grammar.from_json_schema(schema, any_whitespace=True, strict_mode=False)
        return xgrammar.Grammar.from_ebnf(one_spelling(str(grammar)))
    except RuntimeError as error:
        raise Refused(str(error)) from error


def llguidance_grammar(schema: str) -> str:
    import llguidance

    overrides: Any = {"json_allowed_escapes": NEEDED_ESCAPES}
    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=overrides)
    except ValueError as error:
        raise Refused(str(error)) from error
    problem = llguidance.LLMatcher.validate_grammar(grammar)
    if problem:
        raise Refused(problem)
    return grammar


def _xgrammar_acceptor(schema: str) -> Accepts:
    from xgrammar.testing import _is_grammar_accept_string

    grammar = xgrammar_grammar(schema)
    return lambda text: bool(_is_grammar_accept_string(grammar, text))


def _llguidance_acceptor(schema: str) -> Accepts:
    import llguidance

    matcher = llguidance.LLMatcher(_bytes_tokenizer(), llguidance_grammar(schema), log_level=0)

    def accepts(text: str) -> bool:
        matcher.reset()
        tokens = list(text.encode())
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    return accepts


@cache
def _bytes_tokenizer() -> Any:
    import llguidance

    return llguidance.LLTokenizer("byte")


class Vocabulary:
    """Tokens as the libraries take them.

    tokens: bytes of each id; special tokens are empty. stop: the id that ends an answer.
    """

    def __init__(self, tokens: list[bytes], stop: int) -> None:
        self.tokens = tokens
        self.stop = stop
        self.num_words = (len(tokens) + 31) // 32

    @cached_property
    def of_xgrammar(self) -> Any:
        import xgrammar

        return xgrammar.TokenizerInfo(self.tokens, stop_token_ids=[self.stop])

    @cached_property
    def of_llguidance(self) -> Any:
        import llguidance
        from llguidance import TokenizerWrapper

        return llguidance.LLTokenizer(TokenizerWrapper(_Encoder(self)))


class _Encoder:
    """What llguidance asks a tokenizer for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.stop
        self.bos_token_id = None
        self.tokens = [token or b"\xff[%d]" % index for index, token in enumerate(vocabulary.tokens)]
        self.special_token_ids = [index for index, token in enumerate(vocabulary.tokens) if not token]

        self.by_byte = {token: index for index, token in enumerate(self.tokens) if len(token) == 1}

    def __call__(self, text: bytes | str) -> list[int]:
        whole = text.encode() if isinstance(text, str) else text
        return [self.by_byte[bytes([byte])] for byte in whole]


class Constrained:
    """One answer under a grammar."""

    def __init__(self, name: str, schema: str, vocabulary: Vocabulary) -> None:
        """Compile. Raises Refused."""
        self.words = np.zeros(vocabulary.num_words, np.int32)
        self._fill, self._accept = {"xgrammar": _xgrammar_matcher, "llguidance": _llguidance_matcher}[name](
            schema, vocabulary, self.words
        )

    def allowed(self) -> NDArray[np.int64]:
        """Ids of the tokens that may come, in order."""
        self._fill()
        return np.flatnonzero(np.unpackbits(self.words.view(np.uint8), bitorder="little"))

    def accept(self, token: int) -> bool:
        return bool(self._accept(token))


def _xgrammar_matcher(schema: str, vocabulary: Vocabulary, words: NDArray[np.int32]) -> Any:
    import torch
    import xgrammar

    compiler = xgrammar.GrammarCompiler(vocabulary.of_xgrammar, max_threads=1, cache_enabled=False)
    try:
        matcher = xgrammar.GrammarMatcher(compiler.compile_grammar(xgrammar_grammar(schema)))
    except RuntimeError as error:
        raise Refused(str(error)) from error
    mask = torch.from_numpy(words)[None]

    def fill() -> None:
        if not matcher.fill_next_token_bitmask(mask):
            words.fill(-1)

    return fill, matcher.accept_token


def _llguidance_matcher(schema: str, vocabulary: Vocabulary, words: NDArray[np.int32]) -> Any:
    import llguidance

    matcher = llguidance.LLMatcher(vocabulary.of_llguidance, llguidance_grammar(schema), log_level=0)
    if matcher.is_error():
        raise Refused(matcher.get_error())

    def fill() -> None:
        bits = matcher.compute_bitmask()
        words[:] = np.frombuffer(bits, np.int32)[: len(words)]

    return fill, matcher.consume_token
