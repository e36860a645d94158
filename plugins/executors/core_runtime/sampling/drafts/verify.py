"""Verification of drafts is sampling: each position is sampled as usual, and the agreeing prefix is kept.

Owns: the comparison. Never does: sample or propose. Called by: the worker.
"""

from __future__ import annotations

from collections.abc import Sequence


def accept(drafts: Sequence[int], sampled: Sequence[int]) -> int:
    """Return the number of drafts that agree with the sampled tokens, up to the first that does not.

    sampled: one token per draft, and possibly one more. The step's tokens are then sampled[: accept(...) + 1].
    """
    for position, (draft, token) in enumerate(zip(drafts, sampled, strict=False)):
        if draft != token:
            return position
    return min(len(drafts), len(sampled))
