"""The states of sequences in their blocks, and the copies that are made of them.

Owns: `StateCopies`: where a sequence's state lies, the copy from before drafts are verified, and what the next plan is to
copy. Never does: take blocks, hash, or copy anything by itself: the worker does, before it computes the plan.
Called by: the manager and the snapshots.

A step that verifies drafts moves the state on by all of them. When some are rejected, the next step begins from the copy
and computes the accepted tokens again, together with new drafts; the scheduler sees to it that these are no more tokens
than a step with all drafts has.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.specs import KVGroup
from core.api.step_plan import StateCopy
from core.kv.sequence import KVSequence


class StateCopies:
    """States in the tables of `groups`, those without a state included.

    num_blocks: of one sequence's state, in all groups.
    can_roll_back: whether sequences have blocks for a copy.
    """

    def __init__(self, groups: Sequence[KVGroup]) -> None:
        self._groups: list[tuple[int, KVGroup]] = []
        for index, group in enumerate(groups):
            if group.kind == "state":
                self._groups.append((index, group))
        self.num_blocks = sum(group.num_state_blocks for _, group in self._groups)
        self.can_roll_back = any(group.num_spare_blocks for _, group in self._groups)
        self._copies: list[StateCopy] = []

    def blocks(self, sequence: KVSequence) -> list[int]:
        """Where the state of a sequence is, group by group."""
        found: list[int] = []
        for index, group in self._groups:
            ids = sequence.block_ids[index]
            found += ids[: group.num_state_blocks]
        return found

    def add(self, sources: list[int], targets: list[int]) -> None:
        """Have the next plan copy blocks, after everything that was added before."""
        self._copies.append(StateCopy(sources, targets))

    def take(self) -> list[StateCopy]:
        """The copies for the next plan that computes something."""
        copies = self._copies
        self._copies = []
        return copies

    def begin_step(self, sequence: KVSequence, num_drafts: int) -> None:
        """The next plan continues a sequence from its computed tokens on: see that its state is the one behind these, and
        that it can come back when drafts are to be verified."""
        if not self.can_roll_back:
            return
        if sequence.is_rolled_back:
            self.add(self._spare_blocks(sequence), self.blocks(sequence))
            sequence.is_rolled_back = False
        elif num_drafts and sequence.num_saved_tokens != sequence.num_computed_tokens:
            self.add(self.blocks(sequence), self._spare_blocks(sequence))
            sequence.num_saved_tokens = sequence.num_computed_tokens

    def _spare_blocks(self, sequence: KVSequence) -> list[int]:
        """Where the copy of a sequence's state is."""
        found: list[int] = []
        for index, group in self._groups:
            ids = sequence.block_ids[index]
            found += ids[group.num_state_blocks :]
        return found
