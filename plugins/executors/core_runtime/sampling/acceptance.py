"""Rules by which drafts are accepted that are not the tokens which would have been sampled without them.

Owns: `AcceptanceRule` and the rules that there are. Never does: look at logits, or know sequences.
Called by: `core_runtime.sampling.judge`.

Without a rule, a draft is kept when it is the token that the sampler draws in its place: tokens are those of a run without
drafts. A rule accepts more drafts and gives that up. Each of its decisions has noise of its own: noise that has already
decided something else, such as what was drafted, would bias the answer.
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
    """One position with a draft, and what the target says of it.

    key: of its noise, whatever the purpose.
    draft: the token.
    nth: how many drafts come before it.
    target: the target's distribution there.
    drawn: the distribution that the draft was drawn from; None: the proposer had no other choice.
    """

    key: NoiseKey
    draft: int
    nth: int
    target: Distribution
    drawn: Distribution | None = None


class AcceptanceRule(Protocol):
    """A way to decide."""

    @property
    def draws_apart(self) -> bool:
        """Whether drafts must be drawn with noise that the sampler does not use, and their distributions be kept."""
        ...

    @property
    def judges_greedy(self) -> bool:
        """Whether it decides on sequences of temperature 0 too."""
        ...

    def tokens(self, positions: Sequence[DraftedPosition]) -> list[int]:
        """The token of each position: the draft, or another one in its place. None depends on another position."""
        ...


class Rejection:
    """Rejection sampling (Chen et al. 2023, arXiv 2302.01318; Leviathan et al. 2023): the target's distribution, exactly.

    A draft is accepted with the probability min(1, target / drawn); else the token comes from max(target - drawn, 0).
    """

    draws_apart = True
    judges_greedy = False

    def tokens(self, positions: Sequence[DraftedPosition]) -> list[int]:
        """The token of each position."""
        chances = _uniform(positions)
        left: list[Shares | None] = []
        for position, chance in zip(positions, chances, strict=True):
            rest = self._rest(position, chance)
            left.append(rest)
        return _decided(positions, left)

    def _rest(self, position: DraftedPosition, chance: float) -> Shares | None:
        """What the token is drawn from that replaces the draft; None: the draft is accepted."""
        target = position.target
        drawn = position.drawn
        share = target.of(position.draft)
        drawn_share = 0.0 if drawn is None else drawn.of(position.draft)
        # a draft that was not drawn from there was the only choice of somebody else
        if drawn is None or drawn_share == 0.0:
            return None if chance < share else target.without(position.draft)
        return None if chance * drawn_share < share else target.excess(drawn)


class Typical:
    """Typical acceptance (Cai et al. 2024, arXiv 2401.10774): drafts that are not unlikely; not the target's distribution.

    A draft is accepted when the target's probability is above min(threshold, alpha * e^-entropy); else the token is the
    target's most likely one.
    """

    draws_apart = False
    judges_greedy = False

    def __init__(self, threshold: float, alpha: float) -> None:
        self._threshold = threshold
        self._alpha = alpha

    def tokens(self, positions: Sequence[DraftedPosition]) -> list[int]:
        """The token of each position."""
        return [self._token(position) for position in positions]

    def _token(self, position: DraftedPosition) -> int:
        target = position.target
        expected = self._alpha * float(np.exp(-target.entropy))
        limit = min(self._threshold, expected)
        return position.draft if target.of(position.draft) > limit else target.most_likely


class Synthetic:
    """Accepts drafts at given rates, whatever the target says: to measure speed as it would be. Answers are wrong.

    rates: by position, how often the drafts up to there are all accepted; those behind the last one never are.
    """

    draws_apart = False
    judges_greedy = True

    def __init__(self, rates: Sequence[float]) -> None:
        self._conditional: list[float] = []
        before = 1.0
        for rate in rates:
            conditional = rate / before if before > 0 else 0.0
            self._conditional.append(conditional)
            before = rate

    def tokens(self, positions: Sequence[DraftedPosition]) -> list[int]:
        """The token of each position."""
        left: list[Shares | None] = []
        for position, chance in zip(positions, _uniform(positions), strict=True):
            is_accepted = chance < self._rate(position.nth)
            rest = None if is_accepted else position.target.without(position.draft)
            left.append(rest)
        return _decided(positions, left)

    def _rate(self, nth: int) -> float:
        return self._conditional[nth] if nth < len(self._conditional) else 0.0


def acceptance_rule(config: AcceptanceConfig | None) -> AcceptanceRule | None:
    """The configured rule; None: drafts are kept that equal what is sampled."""
    if config is None:
        return None
    if config.method == "rejection":
        return Rejection()
    if config.method == "typical":
        return Typical(config.threshold, config.alpha)
    return Synthetic(config.rates)


def _uniform(positions: Sequence[DraftedPosition]) -> list[float]:
    """A number for each, between 0 and 1, neither of which it is."""
    keys = [replace(position.key, purpose=PURPOSE_ACCEPT) for position in positions]
    ids: Ids = np.zeros(1, np.int64)
    words = words_of(keys, [ids] * len(keys))
    return [(float(word[0]) + 0.5) * 2.0**-32 for word in words]


def _decided(positions: Sequence[DraftedPosition], left: Sequence[Shares | None]) -> list[int]:
    """The drafts, and in place of some of them a token drawn in proportion to what is left of the target's shares.

    left: for each position, of the target's `ids`; None, or nothing left: the draft.
    """
    tokens = [position.draft for position in positions]
    replaced: list[int] = []
    entrants: list[Entrant] = []
    for place, (position, shares) in enumerate(zip(positions, left, strict=True)):
        if shares is None or not shares.any():
            continue
        possible = shares > 0
        logarithms = np.log(shares[possible])
        z: Float32 = (logarithms - logarithms.max()).astype(np.float32)
        key = replace(position.key, purpose=PURPOSE_RECOVER)
        entrants.append(Entrant(key, z, position.target.ids[possible]))
        replaced.append(place)
    for place, token in zip(replaced, winners(entrants), strict=True):
        tokens[place] = token
    return tokens
