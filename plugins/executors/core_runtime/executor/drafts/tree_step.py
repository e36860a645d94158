"""Verification of draft trees in a step.

Owns: the layout of a tree's drafts among a step's tokens, which keys each draft sees, and the moves after some are
accepted. Never does: interpret a token, or sample. Called by: the persistent batch, the reading of sampled rows,
and the model runner.

The drafts of a sequence are computed side by side: the k-th one uses the slot of the k-th position after the known
tokens, whatever its own position is. Attention sees each draft as a sequence of one row, whose last keys are those of
its path. So the result of a row is bit for bit the same as at the end of a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from core.api.step_plan import Int32Array, Slot
from core_runtime.contracts import BatchView
from core_runtime.executor.steps.buffers import StepBuffers
from core_runtime.sampling.drafts.draft_tree import DraftTree

Rows = NDArray[np.int64]


@dataclass(slots=True)
class TreeStep:
    """The trees of one step.

    trees: trees by slot; all other sequences have chains.
    moves: (from, to): tokens of the step whose keys and values must be moved to the slots of their positions.
    """

    trees: dict[Slot, DraftTree] = field(default_factory=dict)
    moves: list[tuple[int, int]] = field(default_factory=list)

    def nth_of_rows(self, owners: Sequence[int], starts: Rows, nth: Rows) -> Rows:
        """Return the number of drafts on the path to each row's token; `nth` is right for chains only."""
        corrected = nth.copy()
        for slot, start in zip(owners, starts.tolist(), strict=False):
            tree = self.trees.get(slot)
            if tree is not None:
                # Row `start` follows the newest known token, which is before all drafts.
                first = start + 1
                corrected[first : first + len(tree.parents)] = [len(path) for path in tree.paths]
        return corrected

    def place(self, positions: NDArray[np.int64], slots: Int32Array, cu_seqlens: Int32Array) -> None:
        """Set the positions of tree drafts, which differ from those of their slots."""
        for slot, stop in zip(slots.tolist(), cu_seqlens[1:].tolist(), strict=True):
            tree = self.trees.get(slot)
            if tree is None:
                continue
            first = stop - len(tree.parents)
            newest = positions[first - 1]
            positions[first:stop] = [newest + len(path) for path in tree.paths]

    def kept(self, slot: Slot, drafts: Sequence[int], sampled: Sequence[int], first_token: int) -> list[int] | None:
        """Return the rows that a sequence keeps, counted from 0, and note the moves; None: its drafts are no tree.

        first_token: row of the step after which the first of them was sampled.
        """
        tree = self.trees.get(slot)
        if tree is None:
            return None
        accepted = tree.walk(drafts, sampled)
        for place, draft in enumerate(accepted):
            # On the first chain, a draft lies in its final slot already.
            if place != draft:
                self.moves.append((first_token + 1 + draft, first_token + 1 + place))
        return [0, *(draft + 1 for draft in accepted)]

    def views(self, views: Sequence[BatchView], slots: Int32Array, buffers: StepBuffers) -> list[BatchView]:
        """Return the step as attention sees it, with each draft of a tree as a sequence; one view per KV group.

        views: views of the same step, as if all drafts were chains.
        slots: slots of its sequences.
        """
        layout = _Layout.of(self.trees, slots, views[0])
        found = []
        device = views[0].seq_lens.device
        for view, mapping in zip(views, buffers.slot_mappings, strict=True):
            # `where` evaluates both branches, so a tail of -1 indexes the mapping too; that value is discarded.
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
    """The B sequences that attention sees.

    owners: for each, the step's sequence that it is, or is a part of.
    query_lens, seq_lens: lengths of each.
    tails: int64 [B, depth], tokens of the step that hold a sequence's last keys; -1: the block table applies.
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
            # Tokens that are no drafts read all keys through the block table.
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
