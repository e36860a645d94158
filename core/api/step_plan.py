"""One step, as the scheduler plans it and as the worker reports it.

Owns: `StepPlan` (deltas only: the worker keeps a persistent batch) and `StepResult`, slotted dataclasses since every step makes
them. Never does: schedule or compute. Called by: scheduler (writes plans, reads results), executor (reads plans, writes
results).

A sequence in the batch is identified by its *slot*, 0 .. max_num_seqs - 1: its row in the worker's persistent batch. The plan
whose `removed` names a slot may already give it to another sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.api.kv_transfer import KVTransfers, Page
from core.api.messages import EngineRequest, TokenLogprobs

MOST_FORCED: Final = 8
"""Maximum number of drafts per step and sequence that are forced: tokens to which its grammar leaves no alternative."""

SequenceKey = tuple[str, int]
Slot = int
Int32Array = NDArray[np.int32]

NO_ROWS: Int32Array = np.empty(0, np.int32)
NO_ROWS.flags.writeable = False


def no_rows() -> Int32Array:
    """Return the shared, read-only empty column, the default of array fields."""
    return NO_ROWS


@dataclass(slots=True)
class NewSequence:
    """A sequence that the worker has not seen, or has forgotten after a preemption.

    slot:                its row in the batch from now on.
    output_token_ids:    tokens already generated (not empty after a preemption: they are computed again).
    num_computed_tokens: tokens whose KV is already in the blocks (prefix hit).
    block_ids:           one list of block ids for each KV group, covering the tokens of this step (and its drafts).
    max_length:          length, prompt plus output tokens, at which the sequence ends in any case.
    """

    slot: Slot
    request: EngineRequest
    output_token_ids: list[int]
    num_computed_tokens: int
    block_ids: list[list[int]]
    max_length: int


class StateCopy(NamedTuple):
    """One copy between blocks that hold states: all sources are read before any target is written.

    The sources are copied with the content that they have when earlier copies of the plan are done.

    sources: block ids.
    targets: block ids, as many as `sources`.
    """

    sources: list[int]
    targets: list[int]


@dataclass(slots=True)
class StepPlan:
    """The work of one step. The worker applies `removed` first, then `new`, then `new_block_ids`.

    Drafts stay with the worker. A plan limits how many of them may be verified. With steps in flight, the scheduler knows
    neither how many drafts there will be nor which tokens these steps will sample: see `num_drafts`.

    slots:         int32 [B], the sequences that compute tokens, in batch order.
    query_lens:    int32 [B], tokens to compute for each, drafts included; at least 1.
    num_computed:  int32 [B], tokens of each whose KV is in the blocks before the step.
    new:           sequences to add to the batch.
    new_block_ids: for sequences already in the batch: blocks to append, one list for each KV group.
    num_drafts:    for sequences that decode: maximum number of the worker's drafts for the sequence that the step verifies.
                   They are counted in `query_lens`. The other tokens of such a row are the newest ones that the worker knows,
                   so `num_computed` is exact only if the worker has accepted no drafts that are unknown to the scheduler. A
                   sequence that has reached its `max_length` computes nothing. The worker drops its drafts of any other
                   sequence that computes something.
    draft_budget:  maximum number of tokens that the proposer may draft for the next step, by sequence. With 0, a draft model
                   with a KV cache processes the sequence and proposes nothing; without an entry, it computes nothing.
    moved_states:  for sequences already in the batch that compute one token: other blocks for the state, one list for each KV
                   group, empty for groups with keys. The step reads the state in the blocks that the sequence has had so far,
                   whose content must stay, and writes it to these.
    removed:       sequences to drop from the batch (finished, aborted or preempted).
    total_num_tokens: sum of query_lens, as planned.
    transfers:     copies of KV blocks to make before anything is computed, or None.
    copies:        copies of states, to make in this order after the saves of `transfers` and before its loads.
    same_batch:    whether `slots` equals that of the previous plan that was not empty, and no sequence was added, was removed
                   or has drafts: each sequence computes one token, the one that the previous step sampled for it.
    """

    slots: Int32Array = field(default_factory=no_rows)
    query_lens: Int32Array = field(default_factory=no_rows)
    num_computed: Int32Array = field(default_factory=no_rows)
    new: list[NewSequence] = field(default_factory=list)
    new_block_ids: dict[Slot, list[list[int]]] = field(default_factory=dict)
    num_drafts: dict[Slot, int] = field(default_factory=dict)
    draft_budget: dict[Slot, int] = field(default_factory=dict)
    moved_states: dict[Slot, list[list[int]]] = field(default_factory=dict)
    removed: list[Slot] = field(default_factory=list)
    total_num_tokens: int = 0
    transfers: KVTransfers | None = None
    copies: list[StateCopy] = field(default_factory=list)
    same_batch: bool = False


@dataclass(slots=True)
class StepResult:
    """The outcome of one step. Sequences in the middle of their prompt have no token.

    slots:           int32 [R], the sequences that sampled, in batch order.
    token_ids:       int32 [R], the first token that each sampled.
    more_token_ids:  with drafts: the tokens after the first one, for sequences that have any.
    logprobs:        for sequences that requested them, one entry for each of their tokens.
    prompt_logprobs: for sequences that requested them, the entries of the prompt positions computed in this step, in order.
    num_verified:    number of drafts that the step verified, for sequences that had any.
    num_proposed:    number of drafts that the worker now has for the next step, for sequences that have any: within
                     `draft_budget` and, for a sequence with a grammar, also up to MOST_FORCED forced tokens without a budget.
    errors:          sequences that failed on their own (such as by NaN logits), with a sentence.
    pages:           bytes of the blocks that `transfers` saves; None when the copies were not made.
    draft_seconds:   seconds spent on proposing drafts.
    proposer_off:    why the proposer was switched off; empty while it is on. Repeated with every step from then on.
    pooled:          float32 numbers in the machine's byte order, for sequences to pool whose prompt ended; they sample nothing.
    facts:           what `ModelConfig.tells` asks for, for sequences that sampled; see `EngineOutput.facts`.
    same_slots:      whether `slots` are known to equal the plan's: every sequence of the step sampled. False: unknown.
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
    facts: dict[Slot, bytes] = field(default_factory=dict)

    def tokens(self) -> dict[Slot, list[int]]:
        """Return all new tokens by slot, in batch order, as Python lists."""
        rows = zip(self.slots.tolist(), self.token_ids.tolist(), strict=True)
        return {slot: [token, *self.more_token_ids.get(slot, ())] for slot, token in rows}
