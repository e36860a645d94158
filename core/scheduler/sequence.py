"""One sequence inside the scheduler.

Owns: `SequenceState`, the mutable state of one `EngineRequest`. Never does: decide anything.
Called by: the scheduler, its queues and the stop conditions.
"""

from __future__ import annotations

from enum import IntEnum
from math import nan

from core.api.messages import EngineRequest, TokenLogprobs
from core.api.policy import Order, WaitingQueue
from core.api.sequence_record import SequenceRecord
from core.api.step_plan import SequenceKey, Slot
from core.kv.sequence import KVSequence

NO_SLOT = -1


class SequenceStatus(IntEnum):
    """Where a sequence is. A preempted one waits again; one that waits for its KV has stepped out of the queue."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    WAITING_FOR_KV = 3


class SequenceState(KVSequence):
    """A sequence from its arrival to its end. One that is resumed begins as if it had been preempted.

    What steps have confirmed is `token_ids` and `num_computed_tokens`; what is planned beyond that, `num_planned_tokens`.

    entered:            the scheduler's clock when it came.
    order:              sorts sequences: the first runs first, the last is preempted first.
    slot:               its row in the worker's batch while it runs, else `NO_SLOT`.
    first_step:         number of the step with which it last got a slot: results of earlier ones are of its life before.
    max_length:         prompt plus output tokens at which it ends.
    min_stop_length:    stop tokens end it only when prompt plus output are longer than this.
    num_pending:        known tokens that are not computed: 1 between two decode steps, whatever the length.
    num_charged_tokens: tokens that its user has been charged for.
    num_drafts:         drafts that the worker holds for its next step, or may hold then; the next step verifies them.
    no_drafts:          why it never has drafts, a name of `NO_DRAFTS_CAUSES`; empty where it may.
    num_unsettled:      drafts that steps in flight may accept: it may be longer by that many tokens than it is sure to be.
    num_cached_tokens:  prompt tokens found in the prefix cache at its first admission; -1 before.
    blocks_missing:     free blocks it needed when it could last not be admitted.
    last_token:         when it got its last token before it lost its slot; NaN for one without, and without a limit of stalls.
    queue:              where it waits; None while it runs or waits for its KV, and for a suspect.
    was_preempted:      whether it has ever lost its blocks to another one.
    is_long:            whether it counts among the long partial prefills.
    prompt_logprobs:    entries gathered so far; None when not asked for or already sent.
    record:             how it has come about; None unless its request asks for that.
    """

    __slots__ = (
        "blocks_missing",
        "entered",
        "first_step",
        "is_long",
        "key",
        "last_token",
        "max_length",
        "min_stop_length",
        "no_drafts",
        "num_cached_tokens",
        "num_charged_tokens",
        "num_drafts",
        "num_pending",
        "num_prompt_tokens",
        "num_unsettled",
        "order",
        "prompt_logprobs",
        "queue",
        "record",
        "request",
        "slot",
        "status",
        "stop_token_ids",
        "was_preempted",
    )

    def __init__(self, request: EngineRequest, order: Order, max_length: int, entered: float = 0.0) -> None:
        resume = request.resume
        given = [] if resume is None else resume.output_token_ids
        super().__init__(
            [*request.prompt_token_ids, *given],
            request.cache_salt,
            owner=request.user,
            tenant=request.tenant,
            num_public_tokens=request.num_public_tokens,
        )
        params = request.params
        self.request = request
        self.key: SequenceKey = request.key
        self.order = order
        self.entered = entered
        self.slot: Slot = NO_SLOT
        self.first_step = 0
        self.status = SequenceStatus.WAITING
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_length = max_length
        if params.max_tokens is not None:
            self.max_length = min(max_length, self.num_prompt_tokens + params.max_tokens)
        self.min_stop_length = self.num_prompt_tokens
        if request.grammar is None:  # otherwise a stop token is only sampled where the answer may end
            self.min_stop_length += params.min_tokens
        self.stop_token_ids = frozenset(request.stop_token_ids)
        self.num_charged_tokens = len(given)
        self.num_drafts = 0
        self.num_unsettled = 0
        self.no_drafts = ""
        self.num_cached_tokens = -1 if resume is None else resume.num_cached_tokens
        self.blocks_missing = 0
        self.queue: WaitingQueue | None = None
        self.last_token = nan
        self.record: SequenceRecord | None = None
        self.was_preempted = False
        self.is_long = False
        self.prompt_logprobs: list[TokenLogprobs] | None = None
        if params.prompt_logprobs is not None and not given:
            self.prompt_logprobs = []

    @property
    def num_computed_tokens(self) -> int:
        """Tokens, from the first on, whose keys and values are in the blocks. Appending a token that continues a decode
        leaves what is pending as it is, so that a decode step has nothing to count."""
        return len(self.token_ids) - self.num_pending

    @num_computed_tokens.setter
    def num_computed_tokens(self, value: int) -> None:
        self.num_pending = len(self.token_ids) - value

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether something is wanted of every token of the prompt, so that none may come from the prefix cache."""
        if self.prompt_logprobs is not None:
            return True
        pooling = self.request.pooling
        return pooling is not None and pooling.needs_all

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of the tokens generated so far."""
        return self.token_ids[self.num_prompt_tokens :]
