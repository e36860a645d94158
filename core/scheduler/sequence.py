"""The state of one sequence in the scheduler.

Owns: `SequenceState`, the mutable state of one `EngineRequest`. Never does: decide anything.
Called by: the scheduler, its queues and the stop conditions.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from math import nan
from typing import TYPE_CHECKING

from core.api.messages import EngineRequest, TokenLogprobs
from core.api.policy import Order, WaitingQueue
from core.api.sequence_record import SequenceRecord
from core.api.step_plan import SequenceKey, Slot
from core.kv.hashing import KeyExtras, MediaSpan
from core.kv.sequence import KVSequence

if TYPE_CHECKING:
    from core.scheduler.awaiting_kv import Aside

NO_SLOT = -1


class SequenceStatus(IntEnum):
    """Status of a sequence. A preempted one is `WAITING` again."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


class SequenceState(KVSequence):
    """A sequence from its arrival to its end, owned by the scheduler's state.

    A resumed sequence begins as if it had been preempted.

    `token_ids` and `num_computed_tokens` are confirmed by results; `num_planned_tokens` includes steps in flight.

    entered:            time of arrival on the scheduler's clock.
    order:              sorts sequences: the first runs first, the last is preempted first.
    slot:               its row in the worker's batch while it runs, else `NO_SLOT`.
    first_step:         number of the step with which it last got a slot; results of earlier steps do not apply to it.
    max_length:         prompt plus output tokens at which it ends.
    min_stop_length:    stop tokens end it only when prompt plus output are longer than this.
    num_pending:        known tokens that are not computed: 1 between two decode steps, whatever the length.
    num_charged_tokens: output tokens that its user has been charged for.
    num_drafts:         drafts that the worker has for its next step, or may have then; that step verifies them.
    no_drafts:          why it never has drafts, a name of `NO_DRAFTS_CAUSES`; empty when it may have some.
    num_unsettled:      drafts that steps in flight may accept, which would make it longer than its confirmed length.
    num_cached_tokens:  prompt tokens served by the prefix cache at its first admission; -1 before.
    blocks_missing:     free blocks it needed when it could last not be admitted.
    last_token:         time of its last token before it lost its slot; NaN for none, and without a stall limit.
    queue:              the queue that it is in, or where it waits aside; None while it runs, and for a suspect.
    was_preempted:      whether it has ever lost its blocks to another sequence.
    is_long:            whether it counts among the long partial prefills.
    prompt_logprobs:    entries gathered so far; None when not requested or already sent.
    record:             the history for its explanation; None unless the request sets `explain`.
    """

    __slots__ = (
        "blocks_missing", "entered", "first_step", "is_long", "key", "last_token", "max_length", "min_stop_length",
        "no_drafts", "num_cached_tokens", "num_charged_tokens", "num_drafts", "num_pending", "num_prompt_tokens",
        "num_unsettled", "order", "prompt_logprobs", "queue", "record", "request", "slot", "status", "stop_token_ids",
        "was_preempted",
    )  # fmt: skip

    def __init__(self, request: EngineRequest, order: Order, max_length: int, entered: float = 0.0) -> None:
        resume = request.resume
        given = [] if resume is None else resume.output_token_ids
        media = tuple(MediaSpan(item.start, item.stop, item.digest) for item in request.media)
        media += tuple(_span(request, start, stop) for start, stop in request.spans)
        super().__init__(
            [*request.prompt_token_ids, *given],
            request.cache_salt,
            KeyExtras(request.adapter, media, request.adapter_from) if request.adapter or media else None,
            owner=request.user,
            tenant=request.tenant,
            num_public_tokens=request.num_public_tokens,
            edges=request.edges,
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
        # A token of the answer's text has at least one byte.
        self.max_cut = max((len(text.encode()) for text in params.stop_strings), default=0)
        # The engine that generated these tokens has charged for them.
        self.num_charged_tokens = len(given)
        self.num_drafts = 0
        self.num_unsettled = 0
        self.no_drafts = ""
        self.num_cached_tokens = -1 if resume is None else resume.num_cached_tokens
        self.blocks_missing = 0
        self.queue: WaitingQueue | Aside | None = None
        self.last_token = nan
        self.record: SequenceRecord | None = None
        self.was_preempted = False
        self.is_long = False
        self.prompt_logprobs: list[TokenLogprobs] | None = None
        # A sequence with output has sent its prompt's logprobs with its first token.
        if params.prompt_logprobs is not None and not given:
            self.prompt_logprobs = []

    @property
    def num_computed_tokens(self) -> int:
        """Number of leading tokens whose keys and values are in the blocks.

        Stored as the difference `num_pending`: a decode step computes one token and appends another, so that it stays as it is.
        """
        return len(self.token_ids) - self.num_pending

    @num_computed_tokens.setter
    def num_computed_tokens(self, value: int) -> None:
        self.num_pending = len(self.token_ids) - value

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every token of the prompt must be computed, so that none may come from the prefix cache."""
        if self.prompt_logprobs is not None:
            return True
        pooling = self.request.pooling
        return pooling is not None and pooling.needs_all

    @property
    def num_output_tokens(self) -> int:
        """Number of tokens generated so far, including those of a resumed request."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """Return a copy of the tokens generated so far."""
        return self.token_ids[self.num_prompt_tokens :]


def _span(request: EngineRequest, start: int, stop: int) -> MediaSpan:
    """Return a part of the prompt whose tokens see each other: the keys and values of each depend on all of them."""
    items = [item.digest for item in request.media if item.start < stop and item.stop > start]
    content = repr((items, request.prompt_token_ids[start:stop]))
    return MediaSpan(start, stop, hashlib.sha256(content.encode()).hexdigest())
