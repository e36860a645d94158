"""The `llguidance` backend: grammars are parsed in a millisecond, and masks are computed on demand.

Owns: one row of `READERS` per kind of grammar (structural tags: `tags`), the limits of a step, and matchers. Never
does: decide whether a schema is honoured (the manifest does). Called by: the helper process (checks grammars) and the
worker (matches), through `core_runtime.contracts.GrammarBackend`.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

import llguidance
import numpy as np
from llguidance.gbnf_to_lark import any_to_lark
from numpy.typing import NDArray

from core.api.errors import RequestError
from core.api.structured_outputs import GrammarKind, GrammarSpec
from core_grammars.contract import GrammarVocabulary
from core_grammars.honoured import read_table
from core_grammars.llguidance.honoured import TABLE
from core_grammars.llguidance.json_text import NEEDED_ESCAPES
from core_grammars.llguidance.tags import Tags
from core_grammars.lowering import lowered

ANY_OBJECT = '{"type":"object"}'
BOOLEANS = {"true": "{}", "false": '{"not":{}}'}
"""Object forms of the schemas `true` and `false`."""
OPTIONS = re.compile(r"^[ \t]*%llguidance\s+(\{.*\})[ \t]*$", re.MULTILINE)
KEPT = 64
"""Number of grammars whose initial matcher is cached for copying."""
LIMITS = llguidance.LLParserLimits(
    max_items_in_row=2000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
"""With these limits a mask takes at most 17 ms, parsing a grammar about 100 ms, and its states about 100 MB."""


class Tokens:
    """A vocabulary in the library's form."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: GrammarVocabulary, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.special_token_ids = list(vocabulary.specials)
        self.tokens = list(vocabulary.tokens)
        for index, text in vocabulary.specials.items():
            self.tokens[index] = text.encode()

    def __call__(self, text: str | bytes) -> list[int]:
        """Return no tokens: the library asks only for those of forced text, which are not used."""
        return []


class LlguidanceBackend:
    """Implements `core_runtime.contracts.GrammarBackend`. The data of a grammar are its text in the library's syntax."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        stops = list(vocabulary.stop_ids)
        self._stops = frozenset(stops)
        self._stand_in: int | None = None
        if not stops:
            self._stand_in = _without_text(vocabulary)
            stops = [self._stand_in]
        self._tokenizer = llguidance.LLTokenizer(
            cast(Any, Tokens(vocabulary, stops[0])),
            n_vocab=len(vocabulary.tokens),
            eos_token=stops,
            slices=llguidance.LLTokenizer.json_slices(),
        )
        self._tags = Tags(vocabulary, lambda spec: READERS[spec.kind](spec))
        self._kept: OrderedDict[bytes, llguidance.LLMatcher] = OrderedDict()

    def compile(self, spec: GrammarSpec) -> bytes:
        """Parse a grammar, and compute its first mask. Raises RequestError."""
        try:
            text = self._text(lowered(spec, read_table(TABLE)))
        except ValueError as error:
            raise _refusal(str(error)) from None
        matcher = self._new(text)
        matcher.compute_bitmask()
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        return text.encode()

    def _text(self, spec: GrammarSpec) -> str:
        """Return a specification in the library's syntax. Raises ValueError."""
        if spec.kind == "structural_tag":
            return _lark(self._tags.lark(spec))
        return READERS[spec.kind](spec)

    def matcher(self, data: bytes) -> LlguidanceMatcher:
        """Return a matcher in its initial state."""
        first = self._kept.get(data)
        if first is None:
            first = self._kept[data] = self._new(data.decode())
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(data)
        return LlguidanceMatcher(first.deep_copy(), self._stops, self._stand_in)

    def _new(self, text: str) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=LIMITS)


class LlguidanceMatcher:
    """Implements `core_runtime.contracts.Matcher` and `ForcesTokens`.

    The library's own matcher is never given a stop token, because it already ends where only a stop token can follow.

    stops: tokens that end an answer. stand_in: a token that the library treats as one if there are none, or None.
    """

    def __init__(self, matcher: llguidance.LLMatcher, stops: frozenset[int], stand_in: int | None) -> None:
        self._matcher = matcher
        self._stops = stops
        self._stand_in = stand_in
        self._has_ended = False

    def fill(self, words: NDArray[np.int32]) -> bool:
        """Set the bits of the tokens that may come next. Raises RequestError when a limit is reached."""
        if self._has_ended:
            words.fill(0)
            return True
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()
        if self._stand_in is not None:
            octets = words.view(np.uint8)
            octets[self._stand_in // 8] &= ~(1 << self._stand_in % 8) & 0xFF
        return True

    def accept(self, token_id: int) -> bool:
        """Accept one token, if it is allowed. Raises RequestError when a limit is reached."""
        if self._has_ended:
            return False
        if token_id in self._stops:
            self._has_ended = bool(self._matcher.is_accepting())
            return self._has_ended
        if self._matcher.is_stopped():
            self._check()  # a matcher that reached a limit earlier, possibly unnoticed, does not advance either
            return False
        if token_id == self._stand_in:
            return False
        taken = self._matcher.try_consume_tokens([token_id])
        self._check()
        return taken == 1

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens. Raises RequestError when there are fewer, or a limit was reached."""
        if self._has_ended and num_tokens:
            self._has_ended = False
            num_tokens -= 1
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._check()

    @property
    def is_terminated(self) -> bool:
        """Whether a stop token was accepted."""
        return self._has_ended

    def forced(self) -> str:
        """Return the text that every answer continues with, without an incomplete character at its end."""
        if self._has_ended or self._matcher.is_stopped():
            return ""
        return bytes(self._matcher.compute_ff_bytes()).decode(errors="ignore")

    def _check(self) -> None:
        """Raise RequestError, naming the limit, for a matcher that cannot continue."""
        if self._matcher.is_error():
            raise _refusal(self._matcher.get_error())


def _without_text(vocabulary: GrammarVocabulary) -> int:
    """Return a token without text; the last token when all have text."""
    tokens = vocabulary.tokens
    silent = (index for index, text in enumerate(tokens) if not text)
    return next(silent, len(tokens) - 1)


def _schema(spec: GrammarSpec) -> str:
    text = spec.text or ANY_OBJECT
    text = BOOLEANS.get(text, text)
    options: dict[str, Any] = {
        "whitespace_flexible": spec.any_whitespace,
        "lenient": False,  # regardless of the schema: the constraint is never weaker than requested
        "coerce_one_of": False,
        "json_allowed_escapes": NEEDED_ESCAPES,
    }
    if not spec.any_whitespace:
        options |= {"item_separator": ",", "key_separator": ":"}
    if spec.whitespace_pattern is not None:
        options["whitespace_pattern"] = spec.whitespace_pattern
    schema = json.loads(text)
    schema["x-guidance"] = options
    return _lark(f"start: %json {json.dumps(schema, ensure_ascii=False)}")


def _regex(spec: GrammarSpec) -> str:
    (grammar,) = json.loads(llguidance.LLMatcher.grammar_from_regex(spec.text))["grammars"]
    return _lark(grammar["lark_grammar"])


def _choice(spec: GrammarSpec) -> str:
    choices = [json.dumps(text, ensure_ascii=False) for text in json.loads(spec.text)]
    return _lark(f"start: {' | '.join(choices)}")


def _ebnf(spec: GrammarSpec) -> str:
    try:
        lark = any_to_lark(spec.text)
    except Exception as error:  # the library's parser may raise anything
        raise ValueError(f"the grammar is not read: {error}") from None
    return _lark(lark)


def _lark(text: str) -> str:
    """Return a Lark grammar whose masks allow every tokenization of a text, not only the tokenizer's own."""
    options: dict[str, Any] = {}
    given = OPTIONS.search(text)
    if given is not None:
        options = json.loads(given[1])
        text = text[: given.start()] + text[given.end() :]
    options["no_forcing"] = True
    return f"%llguidance {json.dumps(options)}\n{text}"


READERS: Mapping[GrammarKind, Callable[[GrammarSpec], str]] = MappingProxyType(
    {
        "json_schema": _schema,
        "json_object": _schema,
        "regex": _regex,
        "choice": _choice,
        "ebnf": _ebnf,
        "lark": lambda spec: _lark(spec.text),
    }
)


def _refusal(said: str) -> RequestError:
    return RequestError(f"llguidance says: {_plain(said)}", param="structured_outputs")


def _plain(said: str) -> str:
    """Return the library's message as one line."""
    return " ".join(said.split())
