"""States of sequences in their blocks, and the copies that are made of them.

Owns: `StateCopies`: the blocks of a sequence's state, its copy from before drafts are verified, and the copies for the next
plan. Never does: take blocks, hash, or copy anything by itself: the worker does, before it computes the plan.
Called by: the manager and the snapshots.

A step that verifies drafts advances the state by all of them. When some are rejected, the next step begins from the copy
and computes the accepted tokens again, together with new drafts; the scheduler ensures that these are no more tokens than a
step with all drafts has.
"""

from __future__ import annotations

from collections.abc import MutableSet, Sequence

from core.api.specs import KVGroup
from core.api.step_plan import StateCopy
from core.kv.sequence import KVSequence


class StateCopies:
    """The states in the tables of `groups`, which may include groups without a state; owned by the manager.

    pending: receives the targets of copies, until the next plan has them.
    num_blocks: blocks of one sequence's state, in all groups.
    can_roll_back: whether sequences have spare blocks for a copy.
    """

    def __init__(self, groups: Sequence[KVGroup], pending: MutableSet[int]) -> None:
        self._pending = pending
        self._groups = [(index, group) for index, group in enumerate(groups) if group.kind == "state"]
        self.num_blocks = sum(group.num_state_blocks for _, group in self._groups)
        self.can_roll_back = any(group.num_spare_blocks for _, group in self._groups)
        self._copies: list[StateCopy] = []

    def blocks(self, sequence: KVSequence) -> list[int]:
        """Return the blocks of a sequence's state, group by group."""
        tables = [sequence.block_ids[index][: group.num_state_blocks] for index, group in self._groups]
        return [block_id for ids in tables for block_id in ids]

    def add(self, sources: list[int], targets: list[int]) -> None:
        """Have the next plan copy blocks, after everything that was added before."""
        self._copies.append(StateCopy(sources, targets))
        self._pending |= set(targets)

    def take(self) -> list[StateCopy]:
        """Return and clear the copies for the next plan that computes something."""
        copies = self._copies
        self._copies = []
        self._pending.clear()
        return copies

    def take_blocks(self, sequence: KVSequence) -> list[int]:
        """Remove the blocks of a state from a sequence, which is about to leave or gets others."""
        found = self.blocks(sequence)
        for index, group in self._groups:
            del sequence.block_ids[index][: group.num_state_blocks]
        return found

    def move(self, sequence: KVSequence, block_ids: list[int]) -> list[int]:
        """Give a sequence other blocks for its state, to which its next step writes; returns those that the step reads."""
        found = self.take_blocks(sequence)
        for index, group in self._groups:
            sequence.block_ids[index][:0] = block_ids[: group.num_state_blocks]
            block_ids = block_ids[group.num_state_blocks :]
        return found

    def begin_step(self, sequence: KVSequence, num_drafts: int) -> None:
        """Prepare the state of a sequence for the next plan, which continues after its computed tokens.

        Restores the state there after a rollback, and copies it when drafts are to be verified.
        """
        if not self.can_roll_back:
            return
        # The copy keeps its content, so this step may verify drafts as well: another rollback comes back to the same place.
        if sequence.is_rolled_back:
            self.add(self._spare_blocks(sequence), self.blocks(sequence))
            sequence.is_rolled_back = False
        # A copy of this very state need not be made twice.
        elif num_drafts and sequence.num_saved_tokens != sequence.num_computed_tokens:
            self.add(self.blocks(sequence), self._spare_blocks(sequence))
            sequence.num_saved_tokens = sequence.num_computed_tokens

    def _spare_blocks(self, sequence: KVSequence) -> list[int]:
        """Return the blocks of the copy of a sequence's state, group by group."""
        tables = [sequence.block_ids[index][group.num_state_blocks :] for index, group in self._groups]
        return [block_id for ids in tables for block_id in ids]
