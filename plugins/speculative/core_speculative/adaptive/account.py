"""What drafts have brought and cost, in steps of the batch without drafts.

Owns: `DraftAccount`. Never does: measure time or decide. Called by: the control of drafts.

Whatever the estimates say, drafts that lose time are off as soon as the account is empty. Steps without drafts pay in a
little: that is how often drafts are tried again.
"""

from __future__ import annotations

FIRST_CREDIT = 1.5
"""Steps that drafts may lose before anything is known of them."""

ALLOWANCE = 0.005
"""The part of the time without drafts that trying them may cost."""

MOST_CREDIT = 4.0
"""Steps that gains are kept for: a text that changes may lose as much."""


class DraftAccount:
    """credit: steps that drafts may lose from now on; negative when they have lost too much."""

    __slots__ = ("credit",)

    def __init__(self) -> None:
        self.credit = FIRST_CREDIT

    def pay(self) -> None:
        """A step had no drafts."""
        self.credit = min(self.credit + ALLOWANCE, MOST_CREDIT)

    def charge(self, num_steps: float, num_tokens: float) -> None:
        """A step that had to do with drafts lasted as long as `num_steps` without, and gave each sequence `num_tokens`."""
        gain = num_tokens - num_steps
        self.credit = min(self.credit + gain, MOST_CREDIT)
