"""Grammars of running sequences: the tokens that each of them allows next.

Owns: the matchers, one a sequence, and how they follow the output when drafts are rejected; where an answer may end.
Never does: compile, look at logits, or end a sequence: a matcher that fails is an error of its own row.
Called by: the persistent batch (makes the masks), the sampler (calls them).

A matcher is made when its sequence first samples, and is then advanced through the output. So a sequence that was preempted
or resumed, and each of several choices, needs nothing but its tokens.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import numpy as np

from core.api.errors import RequestError
from core.api.messages import EngineRequest
from core.api.structured_outputs import FIELD, CompiledGrammar
from core_grammars.contract import ForcesTokens, GrammarBackend, Matcher
from core_runtime.executor.constraints.forced_text import MOST_CHARACTERS, ForcedTexts
from core_runtime.executor.constraints.mask_work import MaskBudget, MaskWork
from core_runtime.sampling.bitmask import WORD_BITS, num_words
from core_runtime.sampling.state import Bitmask, MaskError, Tokens

logger = logging.getLogger(__name__)

LEAST_FORCED: Final = 2
"""Minimum characters of a forced text; a shorter one is a single token, which the model may merge with the text after it."""

KEPT: Final = 32
"""Maximum compiled grammars to cache; backends cache as many parsed ones."""

KEPT_BYTES: Final = 64 << 20
"""Maximum bytes of cached compiled grammars; the newest one is kept in any case."""


class Grammars:
    """Makes the token masks of sequences with a grammar. Owned by the worker; also used by the thread that prepares grammars.

    load: load a backend by name; called once per name. Its exceptions end the sequences that need the backend.
    texts: tokenizations of forced text.
    vocab_size: entries of a row of logits.
    """

    def __init__(self, load: Callable[[str], GrammarBackend], texts: ForcedTexts, vocab_size: int) -> None:
        self.texts = texts
        self.vocab_size = vocab_size
        self.budget = MaskBudget()
        self._load = load
        self._backends: dict[str, GrammarBackend] = {}
        self._data: OrderedDict[str, bytes] = OrderedDict()
        self._num_bytes = 0
        self._loading = threading.Lock()
        self._making = threading.Lock()

    def mask(self, request: EngineRequest, grammar: CompiledGrammar) -> GrammarMask:
        """Make the mask of a sequence that enters the batch, for the first time or after preemption."""
        return GrammarMask(self, request, grammar)

    def is_prepared(self, grammar: CompiledGrammar) -> bool:
        """Whether a matcher can be made without loading a backend or parsing the grammar."""
        return grammar.key in self._data

    def prepare(self, grammar: CompiledGrammar) -> None:
        """Load the grammar's backend and let it parse the grammar; called by another thread than that of the steps.

        Raises any exception of the backend.
        """
        self.matcher(grammar)

    def matcher(self, grammar: CompiledGrammar) -> Matcher:
        """Make a matcher in its initial state. Raises any exception of the backend."""
        backend = self._backends.get(grammar.backend)
        if backend is None:
            # Checked again under the lock: the preparing thread and the thread of the steps may both miss, and loading
            # takes long.
            with self._loading:
                backend = self._backends.get(grammar.backend)
                if backend is None:
                    backend = self._backends[grammar.backend] = self._load(grammar.backend)
        with self._making:  # backends need not be thread-safe
            data = self._data.get(grammar.key, grammar.data)
            matcher = backend.matcher(data)
            self._keep(grammar.key, data)
        return matcher

    def _keep(self, key: str, data: bytes) -> None:
        """Cache a grammar's bytes, so that equal grammars are one object: backends find their parsed grammar by
        identity, without comparing bytes.
        """
        if key not in self._data:
            self._data[key] = data
            self._num_bytes += len(data)
        self._data.move_to_end(key)
        while len(self._data) > KEPT or (self._num_bytes > KEPT_BYTES and len(self._data) > 1):
            _, oldest = self._data.popitem(last=False)
            self._num_bytes -= len(oldest)


class GrammarMask:
    """The token mask of one sequence; implements `core_runtime.sampling.TokenMask`.

    must_end: see `TokenMask`.
    """

    def __init__(self, grammars: Grammars, request: EngineRequest, grammar: CompiledGrammar) -> None:
        self.must_end = False
        self._grammars = grammars
        self._grammar = grammar
        self._work = MaskWork(grammars.budget)
        self._matcher: Matcher | None = None
        self._forcing: ForcesTokens | None = None
        self._watched: tuple[int, str] | None = None
        self._num_sure = 0
        self._unsure: list[int] = []
        params = request.params
        self._min_tokens = params.min_tokens
        vocab_size = grammars.vocab_size
        self._words: Bitmask = np.zeros(num_words(vocab_size), np.int32)
        ends = [token for token in request.stop_token_ids if token < vocab_size]
        wanted = params.stop_token_ids or ()
        ignored = request.eos_token_ids if params.ignore_eos else ()
        self._stops = frozenset(request.stop_token_ids)
        self._ends = TokenBits(ends)
        self._eos = TokenBits([token for token in request.eos_token_ids if token < vocab_size])
        self._ignored = TokenBits([token for token in ignored if token < vocab_size and token not in wanted])

    def __call__(self, output: Tokens, num_drafted: int) -> Bitmask | None:
        """Return the bitmask of allowed tokens; see `TokenMask`."""
        self.must_end = False
        self._prepare()
        try:
            self._work.begin()
            words = self._allowed(len(output)) if self._follow(output, num_drafted) else None
            self._work.end()
            return words
        except MaskError:
            raise
        except Exception as error:  # a plugin's failure ends this sequence, never the step
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> MaskError:
        name = self._grammar.backend
        if isinstance(error, RequestError):  # the grammar is at fault, not the backend
            return MaskError(f"{FIELD} takes too much work. {error}")
        logger.error("The grammar backend '%s' failed.", name, exc_info=error)
        return MaskError(f"The grammar backend '{name}' failed ({type(error).__name__}: {error}).")

    def allows(self, output: Tokens, num_drafted: int, token_id: int) -> bool:
        """Whether the grammar allows a token; see `TokenMask`. Tokens that end an answer are left to the bitmask."""
        if token_id in self._stops:
            return False
        self._prepare()
        try:
            self._work.begin()
            follows = self._follow(output, num_drafted)
            accepted = follows and self._accept(token_id)
            self._work.end()
        except MaskError:
            raise
        except Exception as error:
            raise self._failed(error) from error
        # Rows after a draft that is not allowed are never used, so any token may come there.
        return accepted or not follows

    def _accept(self, token_id: int) -> bool:
        assert self._matcher is not None
        if not self._matcher.accept(token_id):
            return False
        self._unsure.append(token_id)
        return True

    def forced(self, output: Tokens) -> list[int]:
        """Return tokens that probably come next because the grammar allows only this text; they may be wrong."""
        try:
            self._prepare()
            self._work.begin()
            text = ""
            if self._follow(output, 0) and self._forcing is not None:
                self._learn(output)
                text = self._forcing.forced()[:MOST_CHARACTERS]
            self._work.end()
            if len(text) < LEAST_FORCED:
                return []
            if self._watched is None:
                self._watched = len(output), text
            tokens = self._grammars.texts.divided(text)
            assert self._matcher is not None
            return _accepted(self._matcher, tokens)
        except Exception as error:  # the next step's mask reports the error and ends the sequence
            logger.debug("No text is forced.", exc_info=error)
            return []

    def _learn(self, output: Tokens) -> None:
        """Learn how the model spelled the forced text, once it has."""
        if self._watched is None:
            return
        start, text = self._watched
        texts = self._grammars.texts
        spelled = texts.spelled(text, output[start:].tolist())
        if spelled is not None:
            texts.learn(text, spelled)
            self._watched = None

    def _prepare(self) -> None:
        """Make the matcher on first use; the time does not count as work on a mask. Raises MaskError."""
        if self._matcher is not None:
            return
        try:
            matcher = self._matcher = self._grammars.matcher(self._grammar)
        except Exception as error:
            raise self._failed(error) from error
        if isinstance(matcher, ForcesTokens):  # checked once: `isinstance` with a Protocol takes longer than a token
            self._forcing = matcher

    def _follow(self, output: Tokens, num_drafted: int) -> bool:
        """Advance the matcher to the end of the output. Returns False after a token that ends it, or a draft that is
        not allowed.

        Rows after such a token are never used, so they may allow every token.
        """
        matcher = self._matcher
        assert matcher is not None
        num_sure = len(output) - num_drafted
        wanted = output[self._num_sure :].tolist()
        taken = self._unsure
        same = _num_common(taken, wanted)
        if same < len(taken):
            matcher.rollback(len(taken) - same)
            del taken[same:]
        for token in wanted[same:]:
            if token in self._stops:
                return False
            if not matcher.accept(token):
                if self._num_sure + len(taken) < num_sure:
                    raise MaskError(
                        f"The grammar does not allow token {token}, the {self._num_sure + len(taken) + 1}th of the output: "
                        "the output was begun without this grammar, or its backend "
                        f"('{self._grammar.backend}') has a defect."
                    )
                return False
            taken.append(token)
        # Tokens that are no drafts cannot be rolled back any more, so they are not compared again.
        del taken[: num_sure - self._num_sure]
        self._num_sure = num_sure
        return True

    def _allowed(self, index: int) -> Bitmask | None:
        """Return the tokens allowed as the output's token `index`, including where it may end; None: all."""
        assert self._matcher is not None
        words = self._words
        is_short = index < self._min_tokens
        if not self._matcher.fill(words):
            if not is_short and not self._ignored:
                return None
            words.fill(-1)
        # A grammar that is complete allows the end-of-sequence tokens, or nothing if there are none.
        may_end = self._eos.any_in(words) if self._eos else not words.any()
        if may_end:
            self._ends.set_in(words)
        elif not self._ends.any_in(words):
            return words
        rest = words.copy()
        # When only an end is possible, the answer must end, even before `min_tokens`.
        self._ends.clear_in(rest)
        if not rest.any():
            self.must_end = True
        elif is_short:
            return rest
        else:
            self._ignored.clear_in(words)
        return words


class TokenBits:
    """A few tokens with their precomputed words and bits in a bitmask."""

    __slots__ = ("_bits", "_places")

    def __init__(self, token_ids: list[int]) -> None:
        by_place: dict[int, int] = {}
        for token in token_ids:
            place = token // WORD_BITS
            by_place[place] = by_place.get(place, 0) | 1 << token % WORD_BITS
        self._places = np.array(list(by_place), np.int64)
        bits = np.array(list(by_place.values()), np.uint32)
        self._bits: Bitmask = bits.view(np.int32)

    def __bool__(self) -> bool:
        return len(self._places) > 0

    def any_in(self, words: Bitmask) -> bool:
        """Whether a mask allows any of the tokens."""
        return bool((words[self._places] & self._bits).any())

    def set_in(self, words: Bitmask) -> None:
        """Allow all of the tokens in a mask."""
        words[self._places] |= self._bits

    def clear_in(self, words: Bitmask) -> None:
        """Forbid all of the tokens in a mask."""
        words[self._places] &= ~self._bits


def _accepted(matcher: Matcher, tokens: list[int]) -> list[int]:
    """Return the leading tokens that the matcher accepts. Its state is unchanged afterwards."""
    count = 0
    for token in tokens:
        if not matcher.accept(token):
            break
        count += 1
    if count:
        matcher.rollback(count)
    return tokens[:count]


def _num_common(first: list[int], second: list[int]) -> int:
    """Return the length of the common prefix."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count
