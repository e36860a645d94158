"""Choice of the drafts that give a batch the most tokens per second.

Owns: `choose`, a function of numbers. Never does: learn them or remember anything. Called by: the control of drafts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MARGIN = 1.01
"""Minimum speed-up of the batch, in tokens per second, that justifies drafting."""

NEVER = 2.0
"""A threshold above every chance: no drafts."""

Floats = NDArray[np.float64]


class Outlook(NamedTuple):
    """Expected cost and gain of a step of B sequences.

    chances:  [B, K], chance of each draft to be accepted, falling along a row.
    shares:   [B], share of the ordered drafts that are proposed.
    step:     seconds of a step without drafts.
    row:      seconds of a further row.
    proposal: [K + 1], seconds of proposing, by the largest number of drafts of any sequence.
    """

    chances: Floats
    shares: Floats
    step: float
    row: float
    proposal: Floats


def choose(outlook: Outlook) -> float:
    """Return the smallest chance with which a draft is worth its row; `NEVER` when the batch is quickest without drafts.

    Drafts are added in the order of their chances for as long as the rate of the whole batch grows.
    """
    num_seqs, most = outlook.chances.shape
    chances = outlook.chances.ravel()
    shares = np.repeat(outlook.shares, most)
    # Stable, so that among equal chances an earlier place of a sequence comes before a later one.
    order = np.argsort(-chances, kind="stable")
    chances = chances[order]
    shares = shares[order]
    tokens = num_seqs + np.cumsum(shares * chances)
    # Proposing takes as long as for the sequence with the most drafts, which is the deepest place so far.
    depth = np.maximum.accumulate(order % most) + 1
    seconds = outlook.step + outlook.row * np.cumsum(shares) + outlook.proposal[depth]
    rates = tokens / seconds
    best = int(rates.argmax())
    if rates[best] <= MARGIN * num_seqs / outlook.step:
        return NEVER
    return float(chances[best])
