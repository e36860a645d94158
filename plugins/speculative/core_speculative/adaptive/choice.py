"""How many drafts bring the most tokens per second.

Owns: `choose`, a function of numbers. Never does: learn them or remember anything. Called by: the control of drafts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MARGIN = 1.01
"""Drafts are worth it when the batch then gets so many times the tokens per second that it gets without."""

NEVER = 2.0
"""A chance that no draft has."""

Floats = NDArray[np.float64]


class Outlook(NamedTuple):
    """What a step of B sequences may cost and bring.

    chances:  [B, K], how likely each draft is kept, falling along a row.
    shares:   [B], how many of the drafts that may be proposed are.
    step:     seconds of a step without drafts.
    row:      seconds of a further row.
    proposal: [K + 1], seconds of proposing, by the most drafts of any sequence.
    """

    chances: Floats
    shares: Floats
    step: float
    row: float
    proposal: Floats


def choose(outlook: Outlook) -> float:
    """The chance from which a draft is worth its row: `NEVER` when the batch is quickest without any.

    Drafts are taken in the order of their chances for as long as the rate of the whole batch grows.
    """
    num_seqs, most = outlook.chances.shape
    chances = outlook.chances.ravel()
    shares = np.repeat(outlook.shares, most)
    order = np.argsort(-chances, kind="stable")
    chances = chances[order]
    shares = shares[order]
    tokens = num_seqs + np.cumsum(shares * chances)
    depth = np.maximum.accumulate(order % most) + 1
    seconds = outlook.step + outlook.row * np.cumsum(shares) + outlook.proposal[depth]
    rates = tokens / seconds
    best = int(rates.argmax())
    if rates[best] <= MARGIN * num_seqs / outlook.step:
        return NEVER
    return float(chances[best])
