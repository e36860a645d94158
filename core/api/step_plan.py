"""One step as the scheduler plans it and as the worker reports it. In-process hot types: slotted dataclasses.

Owns: `StepPlan` (deltas only: the worker keeps a persistent batch) and `StepResult`. Never does: schedule or compute.
Called by: scheduler (writes plans, reads results), executor (reads plans, writes results).

A sequence in the batch is named by its *slot*, 0 .. max_num_seqs - 1: its row in the worker's persistent batch. A slot is
free for another sequence from the plan on whose `removed` names it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.api.kv_transfer import KVTransfers, Page
from core.api.messages import EngineRequest, TokenLogprobs

MOST_FORCED: Final = 8
"""Drafts a step that a sequence may have because its grammar leaves nothing else."""

SequenceKey = tuple[str, int]
Slot = int
Int32Array = NDArray[np.int32]

NO_ROWS: Int32Array = np.empty(0, np.int32)
NO_ROWS.flags.writeable = False


def no_rows() -> Int32Array:
    """An empty column."""
    return NO_ROWS


@dataclass(slots=True)
class NewSequence:
    """A sequence that the worker has not seen, or has forgotten after a preemption.

    slot:                its row from now on.
    output_token_ids:    tokens already generated (not empty after a preemption: they are computed again).
    num_computed_tokens: tokens whose KV is already in the blocks (prefix hit).
    block_ids:           one list of block ids for each KV group, covering the tokens of this step (and its drafts).
    max_length:          prompt plus output tokens at which it ends, whatever comes.
    """

    slot: Slot
    request: EngineRequest
    output_token_ids: list[int]
    num_computed_tokens: int
    block_ids: list[list[int]]
    max_length: int


class StateCopy(NamedTuple):
    """Blocks to copy as they are when its turn comes: all sources are read before a target is written.

    sources: block ids.
    targets: as many.
    """

    sources: list[int]
    targets: list[int]


@dataclass(slots=True)
class StepPlan:
    """What to compute in one step. The worker applies `removed` first, then `new`, then `new_block_ids`.

    Drafts stay with the worker. A plan says how many it may verify, before anybody knows how many there will be, and which
    tokens the steps in flight will give: see `num_drafts`.

    slots:         int32 [B], the sequences that compute tokens, in batch order.
    query_lens:    int32 [B], tokens to compute of each, drafts included; at least 1.
    num_computed:  int32 [B], tokens of each whose KV is in the blocks before the step.
    new:           sequences to add to the batch.
    new_block_ids: for sequences already in the batch: blocks appended, one list for each KV group.
    num_drafts:    for sequences that decode: most of the drafts that the worker holds for it that the step verifies. They
                   are counted in `query_lens`. The other tokens of such a row are the newest ones that the worker knows,
                   so `num_computed` is right only if it has accepted no drafts that the scheduler has not heard of; a
                   sequence that has reached its `max_length` computes nothing. Held drafts of any other sequence that
                   computes something are forgotten.
    draft_budget:  how many draft tokens the proposer may propose for the next step, for each sequence. With 0, a draft that
                   keeps a KV cache goes on with the sequence and proposes nothing; without an entry, it computes nothing.
    removed:       sequences to drop from the batch (finished, aborted or preempted).
    total_num_tokens: sum of query_lens, as planned.
    transfers:     copies of KV blocks to make before anything else, or None.
    copies:        of states, to make in this order before anything is computed.
    same_batch:    whether `slots` equals that of the plan before, which was not empty, and nobody came, left, or has
                   drafts: each sequence computes one token, the one that the step before gave it.
    """

    slots: Int32Array = field(default_factory=no_rows)
    query_lens: Int32Array = field(default_factory=no_rows)
    num_computed: Int32Array = field(default_factory=no_rows)
    new: list[NewSequence] = field(default_factory=list)
    new_block_ids: dict[Slot, list[list[int]]] = field(default_factory=dict)
    num_drafts: dict[Slot, int] = field(default_factory=dict)
    draft_budget: dict[Slot, int] = field(default_factory=dict)
    removed: list[Slot] = field(default_factory=list)
    total_num_tokens: int = 0
    transfers: KVTransfers | None = None
    copies: list[StateCopy] = field(default_factory=list)
    same_batch: bool = False


@dataclass(slots=True)
class StepResult:
    """What one step produced. Sequences in the middle of their prompt have no token.

    slots:           int32 [R], the sequences that sampled, in batch order.
    token_ids:       int32 [R], the first token that each sampled.
    more_token_ids:  with drafts: the tokens behind the first one, for sequences that have any.
    logprobs:        for sequences that asked, one entry for each of their tokens.
    prompt_logprobs: for sequences that asked, the entries of the prompt positions computed in this step, in order.
    num_verified:    drafts that the step verified, for sequences that had any.
    num_proposed:    drafts that the worker now holds for the next step, for sequences that have any: within `draft_budget`,
                     and for a sequence with a grammar also the tokens of forced text, MOST_FORCED at most, without a budget.
    errors:          sequences that failed alone (such as NaN logits), with a sentence.
    pages:           the bytes of the blocks that `transfers` wanted saved; None when the copies were not made.
    draft_seconds:   that proposing drafts took.
    proposer_off:    why the proposer is not asked any more; empty while it is. Told with every step from then on.
    pooled:          float32 numbers in the machine's byte order, for sequences to pool whose prompt ended; they sample nothing.
    same_slots:      whether `slots` are known to equal the plan's: every sequence of the step sampled. False says nothing.
    """

    slots: Int32Array = field(default_factory=no_rows)
    token_ids: Int32Array = field(default_factory=no_rows)
    more_token_ids: dict[Slot, list[int]] = field(default_factory=dict)
    logprobs: dict[Slot, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[Slot, list[TokenLogprobs]] = field(default_factory=dict)
    num_verified: dict[Slot, int] = field(default_factory=dict)
    num_proposed: dict[Slot, int] = field(default_factory=dict)
    errors: dict[Slot, str] = field(default_factory=dict)
    pages: list[Page] | None = None
    same_slots: bool = False
    draft_seconds: float = 0.0
    proposer_off: str = ""
    pooled: dict[Slot, bytes] = field(default_factory=dict)

    def tokens(self) -> dict[Slot, list[int]]:
        """All new tokens by slot, in batch order."""
        more = self.more_token_ids
        found = {}
        for slot, token in zip(self.slots.tolist(), self.token_ids.tolist(), strict=True):
            found[slot] = [token, *more.get(slot, ())]
        return found
