"""The race: the candidate with the largest logit/T − ln E wins, the lowest id on ties.

Owns: the exact argmax over noisy candidates, and the short cuts that cannot change it. Never does: mask, filter or
penalize. Called by: `core_runtime.sampling.kernel`.

Two short cuts. A candidate that is below the best by more than the range of the noise cannot win: no noise is drawn for it.
Since x ≤ E ≤ 22.9·x, `z − ln x` bounds the score from above and is at most 3.14 too high: only candidates whose bound is that
close to the best bound are scored exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from core_runtime.sampling.noise import MAX_GUMBEL_RANGE, Float32, Ids, NoiseKey, Words, gumbel, words_of, words_of_all

BOUND_SLACK: Final = np.float32(3.15)
"""ln(22.9) plus the rounding of the bound, rounded up."""

DENSE_FRACTION: Final = 4
"""Noise is drawn for whole groups of four when more than 1/4 of the vocabulary takes part."""


@dataclass(slots=True)
class Entrant:
    """The candidates of one position.

    key: key of its noise.
    z: float32, (logit − largest)/T.
    ids: ascending vocabulary ids of z; None: all entries in order.
    """

    key: NoiseKey
    z: Float32
    ids: Ids | None = None


def winners(entrants: Sequence[Entrant]) -> list[int]:
    """Return the sampled token of each entrant. The result of one does not depend on the others."""
    finalists: list[tuple[Ids, Float32, Words] | None] = [None] * len(entrants)
    sparse: list[tuple[int, Ids, Float32]] = []
    for i, entrant in enumerate(entrants):
        z = entrant.z
        size = len(z)
        alive = np.flatnonzero(z >= np.float32(-MAX_GUMBEL_RANGE))
        if entrant.ids is None and len(alive) * DENSE_FRACTION > size:
            words = words_of_all(entrant.key, size)
            finalists[i] = _finalists(np.arange(size), z, words)
        else:
            ids = alive if entrant.ids is None else entrant.ids[alive]
            sparse.append((i, ids, z[alive]))
    if sparse:
        keys = [entrants[i].key for i, _, _ in sparse]
        all_words = words_of(keys, [ids for _, ids, _ in sparse])
        for (i, ids, z), words in zip(sparse, all_words, strict=True):
            finalists[i] = _finalists(ids, z, words)
    return _decide([final for final in finalists if final is not None])


def _finalists(ids: Ids, z: Float32, words: Words) -> tuple[Ids, Float32, Words]:
    """Return the candidates that can still win, with their z and words."""
    # -ln x without the constant 32·ln 2, which all candidates share.
    x = words.astype(np.float32) + np.float32(0.5)
    bound = z - np.log(x)
    least = bound.max() - BOUND_SLACK
    near = np.flatnonzero(bound >= least)
    return ids[near], z[near], words[near]


def _decide(finalists: list[tuple[Ids, Float32, Words]]) -> list[int]:
    """Return the winner of each row's finalists; exact noise is computed for all of them at once."""
    if not finalists:
        return []
    z = np.concatenate([z for _, z, _ in finalists])
    words = np.concatenate([words for _, _, words in finalists])
    scores = z + gumbel(words)
    chosen = []
    start = 0
    for ids, _, _ in finalists:
        stop = start + len(ids)
        # argmax returns the first of equal scores, which has the lowest id.
        best = int(np.argmax(scores[start:stop]))
        chosen.append(int(ids[best]))
        start = stop
    return chosen
