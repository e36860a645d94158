"""Bad words of one sequence.

Owns: which tokens would complete a bad word. Never does: touch logits. Called by: `core_runtime.sampling.state` and
`core_runtime.sampling.changes.stages`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from core_runtime.sampling.noise import Ids


class BadWords:
    """Bad words, indexed so that a step looks only at those that may end now, however many there are.

    words: non-empty sequences of token ids.
    """

    __slots__ = ("_by_token_before", "_longest", "_singles")

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        singles: list[int] = []
        self._by_token_before: dict[int, list[tuple[int, ...]]] = {}
        self._longest = 0
        for word in words:
            self._longest = max(self._longest, len(word))
            if len(word) == 1:
                singles.append(word[0])
            elif len(word) > 1:
                before = word[-2]
                self._by_token_before.setdefault(before, []).append(tuple(word))
        self._singles: Ids = np.array(singles, dtype=np.int64)

    def __bool__(self) -> bool:
        return self._longest > 0

    def ends(self, output: NDArray[np.int32]) -> Ids:
        """Return the last tokens of words whose other tokens end the output, int32 [n]. The prompt does not count."""
        recent = tuple(output[-self._longest :].tolist())
        candidates = self._by_token_before.get(recent[-1]) if recent else None
        if candidates is None:
            return self._singles
        ends = []
        for word in candidates:
            beginning = word[:-1]
            if recent[-len(beginning) :] == beginning:
                ends.append(word[-1])
        completing = np.array(ends, dtype=np.int64)
        return np.concatenate([self._singles, completing])
