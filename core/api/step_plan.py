"""One step as the scheduler plans it and as the worker reports it. In-process hot types: slotted dataclasses.

Owns: `StepPlan` (deltas only: the worker keeps a persistent batch) and `StepResult`. Never does: schedule or compute.
Called by: scheduler (writes plans, reads results), executor (reads plans, writes results).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from core.api.messages import EngineRequest, TokenLogprobs

SequenceKey = tuple[str, int]


@dataclass(slots=True)
class NewSequence:
    """A sequence that the worker has not seen, or has forgotten after a preemption.

    output_token_ids:    tokens already generated (not empty after a preemption: they are computed again).
    num_computed_tokens: tokens whose KV is already in the blocks (prefix hit).
    block_ids:           one list of block ids for each KV group, covering the tokens of this step (and its drafts).
    """

    request: EngineRequest
    output_token_ids: list[int]
    num_computed_tokens: int
    block_ids: list[list[int]]


@dataclass(slots=True)
class StepPlan:
    """What to compute in one step.

    new:              sequences to add to the batch.
    new_block_ids:    for sequences already in the batch: blocks appended, one list for each KV group.
    num_scheduled:    tokens to compute for each sequence, drafts included; insertion order is the batch order.
    drafts:           draft tokens to verify, at the end of a sequence's scheduled tokens.
    draft_budget:     how many draft tokens the proposer may propose for the next step, for each sequence.
    removed:          sequences to drop from the batch (finished, aborted or preempted).
    total_num_tokens: sum of num_scheduled.
    """

    new: list[NewSequence] = field(default_factory=list)
    new_block_ids: dict[SequenceKey, list[list[int]]] = field(default_factory=dict)
    num_scheduled: dict[SequenceKey, int] = field(default_factory=dict)
    drafts: dict[SequenceKey, list[int]] = field(default_factory=dict)
    draft_budget: dict[SequenceKey, int] = field(default_factory=dict)
    removed: list[SequenceKey] = field(default_factory=list)
    total_num_tokens: int = 0


@dataclass(slots=True)
class StepResult:
    """What one step produced.

    token_ids:       sampled tokens for each sequence that reached its last known token: the accepted drafts, then one more.
                     A sequence in the middle of its prompt has no entry.
    logprobs:        for sequences that asked, one entry for each token in `token_ids`.
    prompt_logprobs: for sequences that asked, the entries of the prompt positions computed in this step, in order.
    drafts:          proposals for the next step.
    errors:          sequences that failed alone (such as NaN logits), with a sentence.
    """

    token_ids: dict[SequenceKey, list[int]] = field(default_factory=dict)
    logprobs: dict[SequenceKey, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[SequenceKey, list[TokenLogprobs]] = field(default_factory=dict)
    drafts: dict[SequenceKey, list[int]] = field(default_factory=dict)
    errors: dict[SequenceKey, str] = field(default_factory=dict)
