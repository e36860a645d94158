"""The `xgrammar` backend: masks of whole vocabularies, computed when a grammar is compiled.

Owns: one row of `COMPILERS` per kind of grammar, and matchers. Never does: decide whether a schema is honoured (the
manifest does). Called by: the helper process (compiles) and the worker (matches), through
`core_runtime.contracts.GrammarBackend`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import xgrammar
from numpy.typing import NDArray

from core.api.errors import RequestError
from core.api.structured_outputs import GrammarKind, GrammarSpec
from core_grammars.contract import GrammarVocabulary
from core_grammars.markers import PARTS, Markers
from core_grammars.xgrammar.own_terms import in_own_terms
from core_grammars.xgrammar.schema_grammar import schema_grammar, with_grammars

ANY_OBJECT = '{"type":"object"}'
NO_TEXT = b"\xff"
"""A byte that no text contains, for tokens without text. The library never allows a token without bytes, not even where
a tag names it.
"""
KEPT = 32
"""Number of grammars kept deserialized."""
WORD_BITS = 32
COUNTS = b"#"
FREE = b" "
"""First byte of a grammar's data: whether parts of it limit their number of tokens."""

Compiler = xgrammar.GrammarCompiler


class XgrammarBackend:
    """Implements `core_runtime.contracts.GrammarBackend`.

    The data of a grammar are `COUNTS` or `FREE`, followed by xgrammar's own JSON.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        tokens = vocabulary.tokens.copy()
        for index, text in vocabulary.specials.items():
            if index not in vocabulary.stop_ids:
                tokens[index] = NO_TEXT + text.encode()
        self._info = xgrammar.TokenizerInfo(
            tokens,
            xgrammar.VocabType.RAW,
            vocab_size=len(vocabulary.tokens),
            stop_token_ids=vocabulary.stop_ids,
        )
        self._compiler = Compiler(self._info, max_threads=1, cache_enabled=False)
        self._markers = Markers(vocabulary.specials)
        self._kept: OrderedDict[bytes, xgrammar.CompiledGrammar] = OrderedDict()

    def compile(self, spec: GrammarSpec) -> bytes:
        """Compile a grammar. Raises RequestError."""
        try:
            spec = in_own_terms(spec)
            if spec.kind == "structural_tag":
                tag = self._markers.as_tokens(json.loads(spec.text))
                tag = with_ends_excluded(with_grammars(tag, spec.any_whitespace), self._info.stop_token_ids)
                compiled = self._compiler.compile_structural_tag(json.dumps(tag))
            else:
                compiled = COMPILERS[spec.kind](self._compiler, spec)
            text: str = compiled.serialize_json()
        except (RuntimeError, ValueError, TypeError) as error:
            raise RequestError(_sentence(error), param="structured_outputs") from None
        counts = spec.kind == "structural_tag" and '"max_tokens"' in spec.text
        return (COUNTS if counts else FREE) + text.encode()

    def matcher(self, data: bytes) -> XgrammarMatcher:
        """Return a matcher in its initial state."""
        compiled = self._kept.get(data)
        if compiled is None:
            compiled = xgrammar.CompiledGrammar.deserialize_json(data[1:].decode(), self._info)
            self._kept[data] = compiled
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(data)
        num_words = -(-self._info.vocab_size // WORD_BITS)
        words = np.zeros(num_words, np.int32) if data.startswith(COUNTS) else None
        return XgrammarMatcher(xgrammar.GrammarMatcher(compiled), words)


class XgrammarMatcher:
    """Implements `core_runtime.contracts.Matcher` and `ForcesTokens`.

    words: buffer for a bitmask, if the grammar counts tokens: the library checks counts only when it fills a mask, and
    accepts any token otherwise.
    """

    def __init__(self, matcher: xgrammar.GrammarMatcher, words: NDArray[np.int32] | None) -> None:
        self._matcher = matcher
        self._words = words

    def fill(self, words: NDArray[np.int32]) -> bool:
        """Set the bits of the tokens that may come next; False when every token may."""
        if self._matcher.is_terminated():
            words.fill(0)
            return True
        return bool(self._matcher.fill_next_token_bitmask(words[np.newaxis]))

    def accept(self, token_id: int) -> bool:
        """Accept one token, if it is allowed."""
        if self.is_terminated or not self._is_counted_in(token_id):
            return False
        return bool(self._matcher.accept_token(token_id))

    def _is_counted_in(self, token_id: int) -> bool:
        """Whether a token is within the grammar's token limits."""
        words = self._words
        if words is None or not self.fill(words):
            return True
        word = int(words[token_id // WORD_BITS])
        return bool(word >> token_id % WORD_BITS & 1)

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens."""
        self._matcher.rollback(num_tokens)

    @property
    def is_terminated(self) -> bool:
        """Whether a stop token was accepted."""
        return bool(self._matcher.is_terminated())

    def forced(self) -> str:
        """Return the text that every answer continues with."""
        if self.is_terminated:
            return ""
        text: str = self._matcher.find_jump_forward_string()
        return text


def with_ends_excluded(value: Any, stop_ids: Sequence[int]) -> Any:
    """Return a part of a structural tag in which no token of the answer may be a stop token.

    Since 0.2.9 xgrammar lets a stop token match the one token that `exclude_token` requires, unless it is excluded too,
    and then treats the answer as ended.
    """
    if isinstance(value, list):
        return [with_ends_excluded(part, stop_ids) for part in value]
    if not isinstance(value, dict):
        return value
    found = dict(value)
    for name in PARTS:
        if name in found:
            found[name] = with_ends_excluded(found[name], stop_ids)
    if found.get("type") == "exclude_token":
        excluded = found.get("exclude_tokens", [])
        found["exclude_tokens"] = [*excluded, *(token for token in stop_ids if token not in excluded)]
    return found


def _schema(compiler: Compiler, spec: GrammarSpec) -> xgrammar.CompiledGrammar:
    return compiler.compile_grammar(schema_grammar(spec.text or ANY_OBJECT, spec.any_whitespace))


def _choice(compiler: Compiler, spec: GrammarSpec) -> xgrammar.CompiledGrammar:
    choices = [_quoted(text) for text in json.loads(spec.text)]
    return compiler.compile_grammar(f"root ::= {' | '.join(choices)}")


def _quoted(text: str) -> str:
    """Return a text as an EBNF literal. Characters other than letters and digits are written as numbers, so that no
    parser takes them for syntax.
    """
    written = ""
    for character in text:
        is_plain = character.isascii() and (character.isalnum() or character in " _-.,:;")
        written += character if is_plain else f"\\U{ord(character):08x}"
    return f'"{written}"'


COMPILERS: Mapping[GrammarKind, Callable[[Compiler, GrammarSpec], xgrammar.CompiledGrammar]] = MappingProxyType(
    {
        "json_schema": _schema,
        "json_object": _schema,
        "regex": lambda compiler, spec: compiler.compile_regex(spec.text),
        "choice": _choice,
        "ebnf": lambda compiler, spec: compiler.compile_grammar(spec.text),
        "lark": lambda compiler, spec: compiler.compile_lark(spec.text),
    }
)


def _sentence(error: Exception) -> str:
    """Return the last line of the library's message; the others are places in its source."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    _, _, said = lines[-1].rpartition("] ")
    return f"xgrammar says: {said or lines[-1]}"
