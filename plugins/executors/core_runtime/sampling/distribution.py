"""The probability distribution of a row's token, after stages, masks, temperature and filters.

Owns: `Distribution`. Never does: draw. Called by: `core_runtime.sampling.drafts.judge` (target and drafts), and the
rules of acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core_runtime.sampling.filters import filtered
from core_runtime.sampling.noise import MAX_GUMBEL_RANGE, Float32, Ids

Shares = NDArray[np.float64]

NEVER: Final = np.float32(-MAX_GUMBEL_RANGE)
"""Minimum z of a candidate: one below can never win the race, so its share is 0."""


@dataclass(slots=True)
class Distribution:
    """The tokens that can be drawn, with their probabilities.

    ids: int64 [n], ascending.
    shares: float64 [n], probabilities; their sum is 1.
    """

    ids: Ids
    shares: Shares

    def of(self, token: int) -> float:
        """Return the probability of a token."""
        place = self._place(token)
        return 0.0 if place is None else float(self.shares[place])

    @property
    def most_likely(self) -> int:
        """The most probable token, the lowest id on ties."""
        place = self.shares.argmax()
        return int(self.ids[place])

    @property
    def entropy(self) -> float:
        """Entropy in nats."""
        possible = self.shares[self.shares > 0]
        logarithms = np.log(possible)
        return -float(possible @ logarithms)

    def without(self, token: int) -> Shares:
        """Return the shares of `ids` with one token's set to 0; their sum is not 1."""
        shares = self.shares.copy()
        place = self._place(token)
        if place is not None:
            shares[place] = 0.0
        return shares

    def excess(self, other: Distribution) -> Shares:
        """Return by how much each share exceeds the other distribution's share of the same token, at least 0."""
        shares = self.shares.copy()
        _, here, there = np.intersect1d(self.ids, other.ids, assume_unique=True, return_indices=True)
        shares[here] -= other.shares[there]
        return np.maximum(shares, 0.0)

    def _place(self, token: int) -> int | None:
        place = int(np.searchsorted(self.ids, token))
        is_known = place < len(self.ids) and self.ids[place] == token
        return place if is_known else None


def distribution(logits: Float32, temperature: float, top_k: int, top_p: float, least: float) -> Distribution:
    """Return the distribution that the race draws from.

    logits: float32 [V], adjusted and masked; the largest is finite.
    temperature: 0: the largest logit alone.
    top_k, top_p, least: filters as in a `RaceKernel`.
    """
    best = int(logits.argmax())
    if temperature == 0:
        return Distribution(np.array([best]), np.ones(1))
    with np.errstate(over="ignore"):  # far below the best with a tiny temperature: -inf is right
        z = (logits - logits[best]) / np.float32(temperature)
    ids, kept = filtered(z, top_k, top_p, least)
    possible = kept >= NEVER
    powers = np.exp(kept[possible].astype(np.float64))
    shares: Shares = powers / powers.sum()
    return Distribution(ids[possible], shares)
