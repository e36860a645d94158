"""Rules of acceptance for drafts that need not equal the sampled tokens.

Owns: `AcceptanceRule` and its implementations. Never does: look at logits, or know sequences.
Called by: `core_runtime.sampling.drafts.judge`.

Without a rule, a draft is kept when it is the token that the sampler draws in its place: tokens are those of a run without
drafts. A rule accepts more drafts and gives up that property. Each of its decisions has noise of its own, because noise that
has already decided something else, such as the draft, would bias the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from core.api.config import AcceptanceConfig
from core_runtime.sampling.distribution import Distribution, Shares
from core_runtime.sampling.noise import PURPOSE_ACCEPT, PURPOSE_RECOVER, Float32, Ids, NoiseKey, words_of
from core_runtime.sampling.race import Entrant, winners


@dataclass(slots=True)
class DraftedPosition:
    """One position with a draft, as a rule sees it.

    key: key of its noise, whatever the purpose.
    draft: the drafted token.
    nth: number of drafts before it.
    target: the target's distribution at this position.
    drawn: the distribution that the draft was drawn from; None: it was not drawn at random.
    """

    key: NoiseKey
    draft: int
    nth: int
    target: Distribution
    drawn: Distribution | None = None


class AcceptanceRule(Protocol):
    """Decides which drafts to accept. The sampler owns one rule, which holds no state of sequences."""

    @property
    def draws_apart(self) -> bool:
        """Whether drafts must be drawn with noise that the sampler does not use, and their distributions be kept."""
        ...

    @property
    def judges_greedy(self) -> bool:
        """Whether it also decides on sequences of temperature 0."""
        ...

    def tokens(self, positions: Sequence[DraftedPosition]) -> list[int]:
        """Return the token of each position: the draft or its replacement. The result of one position depends on no other."""
        ...


class Rejection:
    """Rejection sampling (Chen et al. 2023, arXiv 2302.01318; Leviathan et al. 2023): the target's distribution, exactly.

    A draft is accepted with the probability min(1, target / drawn); else the token comes from max(target - drawn, 0).
    """

    draws_apart = True
    judges_greedy = False

    def tokens(self, positions: Sequence[DraftedPosition]) -> list[int]:
        """Accept or replace each draft by rejection sampling."""
        chances = _uniform(positions)
        left: list[Shares | None] = []
        for position, chance in zip(positions, chances, strict=True):
            rest = self._rest(position, chance)
            left.append(rest)
        return _decided(positions, left)

    def _rest(self, position: DraftedPosition, chance: float) -> Shares | None:
        """Return the shares that the draft's replacement is drawn from; None: the draft is accepted."""
        target = position.target
        drawn = position.drawn
        share = target.of(position.draft)
        drawn_share = 0.0 if drawn is None else drawn.of(position.draft)
        # a draft that was not drawn from a distribution was its proposer's only choice: its probability there is 1
        if drawn is None or drawn_share == 0.0:
            return None if chance < share else target.without(position.draft)
        return None if chance * drawn_share < share else target.excess(drawn)


class Typical:
    """Typical acceptance (Cai et al. 2024, arXiv 2401.10774): accepts drafts that are not unlikely; changes the distribution.

    A draft is accepted when the target's probability is above min(threshold, alpha * e^-entropy); else the token is the
    target's most likely one.
    """

    draws_apart = False
    judges_greedy = False

    def __init__(self, threshold: float, alpha: float) -> None:
        self._threshold = threshold
        self._alpha = alpha

    def tokens(self, positions: Sequence[DraftedPosition]) -> list[int]:
        """Accept each draft above its threshold, or replace it by the most likely token."""
        return [self._token(position) for position in positions]

    def _token(self, position: DraftedPosition) -> int:
        target = position.target
        expected = self._alpha * float(np.exp(-target.entropy))
        limit = min(self._threshold, expected)
        return position.draft if target.of(position.draft) > limit else target.most_likely


class Synthetic:
    """Accepts drafts at given rates, whatever the target says, to measure speed at such rates. Answers are wrong.

    rates: by position, the probability that all drafts up to it are accepted; later positions are never accepted.
    """

    draws_apart = False
    judges_greedy = True

    def __init__(self, rates: Sequence[float]) -> None:
        self._conditional: list[float] = []
        before = 1.0
        for rate in rates:
            # A position is judged only after all earlier ones were accepted.
            conditional = rate / before if before > 0 else 0.0
            self._conditional.append(conditional)
            before = rate

    def tokens(self, positions: Sequence[DraftedPosition]) -> list[int]:
        """Accept drafts at random at the given rates, or replace them."""
        left: list[Shares | None] = []
        for position, chance in zip(positions, _uniform(positions), strict=True):
            is_accepted = chance < self._rate(position.nth)
            rest = None if is_accepted else position.target.without(position.draft)
            left.append(rest)
        return _decided(positions, left)

    def _rate(self, nth: int) -> float:
        return self._conditional[nth] if nth < len(self._conditional) else 0.0


def acceptance_rule(config: AcceptanceConfig | None) -> AcceptanceRule | None:
    """Make the configured rule; None: drafts are kept that equal the sampled tokens."""
    if config is None:
        return None
    if config.method == "rejection":
        return Rejection()
    if config.method == "typical":
        return Typical(config.threshold, config.alpha)
    return Synthetic(config.rates)


def _uniform(positions: Sequence[DraftedPosition]) -> list[float]:
    """Return one random number per position, in the open interval (0, 1)."""
    keys = [replace(position.key, purpose=PURPOSE_ACCEPT) for position in positions]
    ids: Ids = np.zeros(1, np.int64)
    words = words_of(keys, [ids] * len(keys))
    return [(float(word[0]) + 0.5) * 2.0**-32 for word in words]


def _decided(positions: Sequence[DraftedPosition], left: Sequence[Shares | None]) -> list[int]:
    """Return the drafts, some of them replaced by a token drawn in proportion to the remaining shares.

    left: for each position, shares of the target's `ids`; None or all zero: keep the draft.
    """
    tokens = [position.draft for position in positions]
    replaced: list[int] = []
    entrants: list[Entrant] = []
    for place, (position, shares) in enumerate(zip(positions, left, strict=True)):
        if shares is None or not shares.any():
            continue
        possible = shares > 0
        # A race over log-probabilities with Gumbel noise draws in proportion to the shares, which need not add up to 1.
        logarithms = np.log(shares[possible])
        z: Float32 = (logarithms - logarithms.max()).astype(np.float32)
        key = replace(position.key, purpose=PURPOSE_RECOVER)
        entrants.append(Entrant(key, z, position.target.ids[possible]))
        replaced.append(place)
    for place, token in zip(replaced, winners(entrants), strict=True):
        tokens[place] = token
    return tokens
