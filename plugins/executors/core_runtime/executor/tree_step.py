"""The part of a step that verifies trees of drafts.

Owns: how the drafts of a tree lie among a step's tokens, which keys each of them sees, and what is moved when some of them
are accepted. Never does: know what a token says, or sample. Called by: the persistent batch, the reading of sampled rows,
and the model runner.

The drafts of a sequence are computed side by side: the k-th one lies in the slot of the k-th position behind what is known,
whatever its own position is. Attention sees each of them as a sequence of one row, whose last keys are those of its path.
What a row computes is then to the bit what it would be as the end of a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from core.api.step_plan import Int32Array, Slot
from core_runtime.contracts import BatchView
from core_runtime.executor.step_buffers import StepBuffers
from core_runtime.sampling.draft_tree import DraftTree

Rows = NDArray[np.int64]


@dataclass(slots=True)
class TreeStep:
    """The trees of one step.

    trees: by sequence; those of all others are chains.
    moves: (from, to): the step's tokens whose keys and values lie elsewhere than where they now belong.
    """

    trees: dict[Slot, DraftTree] = field(default_factory=dict)
    moves: list[tuple[int, int]] = field(default_factory=list)

    def nth_of_rows(self, owners: Sequence[int], starts: Rows, nth: Rows) -> Rows:
        """How many drafts come before each row's token, which in a tree is not how many rows do."""
        corrected = nth.copy()
        for slot, start in zip(owners, starts.tolist(), strict=False):
            tree = self.trees.get(slot)
            if tree is not None:
                first = start + 1
                corrected[first : first + len(tree.parents)] = [len(path) for path in tree.paths]
        return corrected

    def place(self, positions: NDArray[np.int64], slots: Int32Array, cu_seqlens: Int32Array) -> None:
        """Give the drafts of trees their own positions, in place of those in whose slots they lie."""
        for slot, stop in zip(slots.tolist(), cu_seqlens[1:].tolist(), strict=True):
            tree = self.trees.get(slot)
            if tree is None:
                continue
            first = stop - len(tree.parents)
            newest = positions[first - 1]
            positions[first:stop] = [newest + len(path) for path in tree.paths]

    def kept(self, slot: Slot, drafts: Sequence[int], sampled: Sequence[int], first_token: int) -> list[int] | None:
        """The rows, from 0 on, that a sequence keeps; None: its drafts are no tree. Notes what is to be moved.

        first_token: the step's token behind which the first of them was sampled.
        """
        tree = self.trees.get(slot)
        if tree is None:
            return None
        accepted = tree.walk(drafts, sampled)
        for place, draft in enumerate(accepted):
            if place != draft:
                self.moves.append((first_token + 1 + draft, first_token + 1 + place))
        return [0, *(draft + 1 for draft in accepted)]

    def views(self, views: Sequence[BatchView], slots: Int32Array, buffers: StepBuffers) -> list[BatchView]:
        """The step as attention sees it, with a sequence of its own for each draft of a tree; for each KV group.

        views: of the same step, as if all drafts were chains.
        slots: of its sequences.
        """
        layout = _Layout.of(self.trees, slots, views[0])
        found = []
        device = views[0].seq_lens.device
        for view, mapping in zip(views, buffers.slot_mappings, strict=True):
            tails = np.where(layout.tails < 0, -1, mapping.array[layout.tails]).astype(np.int32)
            lengths = torch.tensor(layout.seq_lens, dtype=torch.int32)
            ends = torch.tensor([0, *np.cumsum(layout.query_lens).tolist()], dtype=torch.int32)
            owners = torch.tensor(layout.owners, device=device)
            own = replace(
                view,
                num_seqs=len(layout.owners),
                max_query_len=max(layout.query_lens),
                max_seq_len=max(layout.seq_lens),
                query_lens=layout.query_lens,
                seq_lens_list=layout.seq_lens,
                cu_seqlens_q=ends.to(device),
                seq_lens=lengths.to(device),
                block_table=view.block_table[owners],
                tails=torch.from_numpy(tails).to(device),
            )
            found.append(own)
        return found


@dataclass(slots=True)
class _Layout:
    """Sequences as attention sees them, B of them.

    owners: the step's sequence that each is, or is a part of.
    query_lens, seq_lens: of each.
    tails: int64 [B, depth], the step's tokens whose keys are a sequence's last ones; -1: where the table says.
    """

    owners: list[int]
    query_lens: list[int]
    seq_lens: list[int]
    tails: Rows

    @classmethod
    def of(cls, trees: dict[Slot, DraftTree], slots: Int32Array, view: BatchView) -> _Layout:
        depth = max(len(path) for tree in trees.values() for path in tree.paths)
        found = cls([], [], [], np.empty((0, depth), np.int64))
        tails: list[list[int]] = []
        stop = 0
        for owner, slot in enumerate(slots.tolist()):
            tree = trees.get(slot)
            stop += view.query_lens[owner]
            num_drafts = 0 if tree is None else len(tree.parents)
            known = view.seq_lens_list[owner] - num_drafts
            found._add(owner, view.query_lens[owner] - num_drafts, known)
            tails.append([-1] * depth)
            first = stop - num_drafts
            for path in () if tree is None else tree.paths:
                found._add(owner, 1, known + len(path))
                tokens = [first + draft for draft in path]
                tails.append([-1] * (depth - len(path)) + tokens)
        found.tails = np.array(tails, np.int64)
        return found

    def _add(self, owner: int, query_len: int, seq_len: int) -> None:
        self.owners.append(owner)
        self.query_lens.append(query_len)
        self.seq_lens.append(seq_len)
