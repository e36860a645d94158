"""The race: the candidate with the largest logit/T − ln E wins, the lowest id on ties.

Owns: the exact argmax over noisy candidates, and the short cuts that cannot change it. Never does: mask, filter or
penalize. Called by: `core_runtime.sampling.kernel`.

Two short cuts. A candidate further than the noise's whole range below the best cannot win: no noise is drawn for it.
And since x ≤ E ≤ 22.9·x, `z − ln x` bounds the score from above and is never more than 3.14 too high: only candidates
whose bound comes that near to the best bound are scored exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from core_runtime.sampling.noise import MAX_GUMBEL_RANGE, Float32, Ids, NoiseKey, Words, gumbel, words_of, words_of_all

BOUND_SLACK: Final = np.float32(3.15)
"""ln(22.9) and the rounding of the bound, rounded up."""

DENSE_FRACTION: Final = 4
"""With more than 1/4 of the vocabulary in the race, noise is drawn for whole groups of four."""


@dataclass(slots=True)
class Entrant:
    """One position.

    key: of its noise.
    z: float32, (logit − largest)/T.
    ids: rising vocabulary ids of z; None: all entries in order.
    """

    key: NoiseKey
    z: Float32
    ids: Ids | None = None


def winners(entrants: Sequence[Entrant]) -> list[int]:
    """The sampled token of each entrant. The result of one does not depend on the others."""
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
    """The candidates that may still win, with their z and words."""
    # -ln x without the constant 32·ln 2, which all candidates share.
    x = words.astype(np.float32) + np.float32(0.5)
    bound = z - np.log(x)
    least = bound.max() - BOUND_SLACK
    near = np.flatnonzero(bound >= least)
    return ids[near], z[near], words[near]


def _decide(finalists: list[tuple[Ids, Float32, Words]]) -> list[int]:
    """The winner of each row's finalists; noise is drawn exactly, for all of them at once."""
    if not finalists:
        return []
    z = np.concatenate([z for _, z, _ in finalists])
    words = np.concatenate([words for _, _, words in finalists])
    scores = z + gumbel(words)
    chosen = []
    start = 0
    for ids, _, _ in finalists:
        stop = start + len(ids)
        best = int(np.argmax(scores[start:stop]))
        chosen.append(int(ids[best]))
        start = stop
    return chosen
