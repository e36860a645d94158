"""Account of the gains and losses of drafts, in steps of the batch without drafts.

Owns: `DraftAccount`. Never does: measure time or decide. Called by: the control of drafts.

Independent of estimates, drafts that lose time are turned off as soon as the account is empty. Steps without drafts
pay in a little, which determines how often drafts are tried again.
"""

from __future__ import annotations

FIRST_CREDIT = 1.5
"""Initial credit: steps that drafts may lose before anything is known about them."""

ALLOWANCE = 0.005
"""Fraction of the time without drafts that trying them may cost."""

MOST_CREDIT = 4.0
"""Maximum credit in steps: when the kind of text changes, drafts may lose as much before they are off."""


class DraftAccount:
    """The account of one engine. credit: steps that drafts may still lose; negative when they have lost too much."""

    __slots__ = ("credit",)

    def __init__(self) -> None:
        self.credit = FIRST_CREDIT

    def pay(self) -> None:
        """Credit the allowance for a step without drafts."""
        self.credit = min(self.credit + ALLOWANCE, MOST_CREDIT)

    def charge(self, num_steps: float, num_tokens: float) -> None:
        """Book a step with drafts: it took as long as `num_steps` without, and gave each sequence `num_tokens` (a mean)."""
        gain = num_tokens - num_steps
        self.credit = min(self.credit + gain, MOST_CREDIT)
