"""Estimates of how likely drafts are right, learned from verified ones.

Owns: `Acceptance`: evidence of each sequence and of the whole run, for each place after the newest token. Never does:
decide on drafts. Called by: the choice of drafts.

A sequence starts from the estimates of the run. The run itself starts from `FIRST_CHANCE`. A place that was not reached
lately counts as good as the one before it, so that it is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FIRST_CHANCE = 0.6
"""The chance of a draft before any was verified."""

RUN_WEIGHT = 4.0
"""Weight of the initial guess for a place, in drafts of the run."""

RUN_DECAY = 0.99
"""Factor on the run's evidence each time a sequence's drafts were verified."""

OWN_WEIGHT = 3.0
"""Weight of the run's estimate for a sequence, in drafts of its own."""

OWN_DECAY = 0.9
"""Factor on a sequence's own evidence with each further step."""

SHARE_RATE = 0.3
"""Fraction of the error that one step corrects in the share of a sequence's ordered drafts that are proposed."""

RUN_SHARE_RATE = 0.05
"""The corresponding fraction for the run."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Acceptance:
    """Chances by slot and place. most: drafts of a sequence in a step."""

    __slots__ = ("_hits", "_places", "_run", "_run_hits", "_run_share", "_run_trials", "_shares", "_trials")

    def __init__(self, most: int, num_slots: int) -> None:
        self._places = np.arange(most)
        self._hits = np.zeros((num_slots, most))
        self._trials = np.zeros((num_slots, most))
        self._shares = np.ones(num_slots)
        self._run_hits = np.zeros(most)
        self._run_trials = np.zeros(most)
        self._run_share = 1.0
        self._run = np.full(most, FIRST_CHANCE)

    def start(self, slot: int) -> None:
        """Reset a slot for another sequence."""
        self._hits[slot] = 0.0
        self._trials[slot] = 0.0
        self._shares[slot] = self._run_share

    def chances(self, slots: NDArray[np.int32]) -> Floats:
        """Return the chance of each draft of these sequences to be accepted, [B, most]: it and all before it are right."""
        right = self._hits[slots] + OWN_WEIGHT * self._run
        right /= self._trials[slots] + OWN_WEIGHT
        np.cumprod(right, axis=1, out=right)
        return right

    def fresh_chances(self) -> Floats:
        """Return the chance of each draft of a new sequence to be accepted, [most]."""
        return np.cumprod(self._run)

    def shares(self, slots: NDArray[np.int32]) -> Floats:
        """Return the share of ordered drafts that are proposed, for each of these sequences, [B]."""
        return self._shares[slots]

    def learn(self, slots: Sequence[int], num_drafts: Sequence[int], num_accepted: Sequence[int]) -> None:
        """Learn from one step that verified drafts of these sequences and accepted `num_accepted` of each."""
        drafted = np.array(num_drafts)[:, None]
        accepted = np.array(num_accepted)[:, None]
        hits = self._places < accepted
        # Places after the first wrong draft say nothing: they continued a text that is not the answer.
        trials = self._places < np.minimum(accepted + 1, drafted)
        rows = np.array(slots)
        self._hits[rows] = OWN_DECAY * self._hits[rows] + hits
        self._trials[rows] = OWN_DECAY * self._trials[rows] + trials
        left = RUN_DECAY ** len(slots)
        self._run_hits = left * self._run_hits + hits.sum(axis=0)
        self._run_trials = left * self._run_trials + trials.sum(axis=0)
        self._learn_run()

    def learn_shares(self, slots: Sequence[int], wanted: Sequence[int], num_drafts: Sequence[int]) -> None:
        """Learn the share of ordered drafts that came. wanted: ordered, at least 1 each; num_drafts: verified."""
        rows = np.array(slots)
        found = np.array(num_drafts) / np.array(wanted)
        self._shares[rows] += SHARE_RATE * (found - self._shares[rows])
        left = (1.0 - RUN_SHARE_RATE) ** len(slots)
        self._run_share = left * self._run_share + (1.0 - left) * float(found.mean())

    def _learn_run(self) -> None:
        """Update the chance of a draft by place, given that all before it are right."""
        chance = FIRST_CHANCE
        hits = self._run_hits.tolist()
        trials = self._run_trials.tolist()
        for place, (num_hits, num_trials) in enumerate(zip(hits, trials, strict=True)):
            chance = (num_hits + RUN_WEIGHT * chance) / (num_trials + RUN_WEIGHT)
            self._run[place] = chance
