"""A trial of compiled grammars before the engine uses them: a few answers are generated, and their masks are timed.

Owns: the time limits of one mask and of a whole trial. Never does: know a backend, or judge what a grammar allows.
Called by: `core_grammars.compile_process`, in the process that can be terminated.

Backend limits, and masks that slow down with each token, show up within a few tokens, and here no other request waits
for them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from core.api.errors import RequestError
from core.api.structured_outputs import FIELD
from core_grammars.contract import GrammarBackend, GrammarVocabulary, Matcher

STEPS = 32
"""Tokens per trial answer."""
SINGLE_S = 0.05
"""Limit in CPU seconds on one mask together with the token before it; the engine has the same limit."""
TRIAL_S = 0.6
"""Limit in CPU seconds on a whole trial."""


class Probe:
    """Tries grammars with one vocabulary. busy: CPU seconds used by the calling thread."""

    def __init__(self, vocabulary: GrammarVocabulary, busy: Callable[[], float] = time.thread_time) -> None:
        self._busy = busy
        self._lengths = np.array([len(token) for token in vocabulary.tokens], np.int32)
        self._is_text = self._lengths > 0
        self._is_text[[token for token in vocabulary.stop_ids if token < len(self._is_text)]] = False
        self._words = np.zeros(-(-len(self._lengths) // 32), np.int32)

    def run(self, backend: GrammarBackend, data: bytes) -> None:
        """Generate an answer of the longest tokens, and one of deterministically drawn tokens.

        Raises RequestError for a grammar that is too slow, and any exception of the backend.
        """
        end = self._busy() + TRIAL_S
        drawn = random.Random(0)
        self._answer(backend.matcher(data), self._longest, end)
        self._answer(backend.matcher(data), lambda allowed: int(drawn.choice(allowed)), end)

    def _answer(self, matcher: Matcher, choose: Callable[[NDArray[np.int64]], int], end: float) -> None:
        token: int | None = None
        for count in range(STEPS):
            begin = self._busy()
            if token is not None and not matcher.accept(token):
                return
            is_limited = matcher.fill(self._words)
            now = self._busy()
            if now - begin > SINGLE_S:
                raise RequestError(
                    f"a mask takes {(now - begin) * 1000:.0f} ms of processor time behind {count} tokens, and "
                    f"{SINGLE_S * 1000:.0f} ms are taken at most; write it so that each text has one reading",
                    param=FIELD,
                )
            if now > end:
                raise RequestError(
                    f"the masks of {STEPS} tokens take more than {TRIAL_S:g} s of processor time; write it so that each text "
                    "has one reading",
                    param=FIELD,
                )
            allowed = self._allowed(is_limited)
            if not len(allowed):
                return
            token = choose(allowed)

    def _allowed(self, is_limited: bool) -> NDArray[np.int64]:
        """Return the text tokens that may come next."""
        if not is_limited:
            return self._is_text.nonzero()[0]
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")[: len(self._is_text)]
        return (bits.astype(bool) & self._is_text).nonzero()[0]

    def _longest(self, allowed: NDArray[np.int64]) -> int:
        return int(allowed[self._lengths[allowed].argmax()])
