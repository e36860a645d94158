"""One sequence inside the scheduler.

Owns: `SequenceState`, the mutable state of one `EngineRequest`. Never does: decide anything.
Called by: the scheduler, its queues and the stop conditions.
"""

from __future__ import annotations

from enum import IntEnum

from core.api.messages import EngineRequest, TokenLogprobs
from core.api.step_plan import SequenceKey
from core.kv.sequence import KVSequence


class SequenceStatus(IntEnum):
    """Where a sequence is. A preempted one waits again."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


class SequenceState(KVSequence):
    """A sequence from its arrival to its end.

    order:             sorts sequences: the first runs first, the last is preempted first.
    max_length:        prompt plus output tokens at which it ends.
    min_stop_length:   stop tokens end it only when prompt plus output are longer than this.
    drafts:            tokens to verify in the next step.
    in_batch:          whether the worker holds it.
    num_cached_tokens: prompt tokens found in the prefix cache at its first admission; -1 before.
    blocks_missing:    free blocks it needed when it could last not be admitted.
    prompt_logprobs:   entries gathered so far; None when not asked for or already sent.
    """

    __slots__ = (
        "blocks_missing",
        "drafts",
        "in_batch",
        "key",
        "max_length",
        "min_stop_length",
        "num_cached_tokens",
        "num_prompt_tokens",
        "order",
        "prompt_logprobs",
        "request",
        "status",
        "stop_token_ids",
    )

    def __init__(self, request: EngineRequest, order: tuple[int, int], max_length: int) -> None:
        super().__init__(list(request.prompt_token_ids), request.cache_salt)
        params = request.params
        self.request = request
        self.key: SequenceKey = request.key
        self.order = order
        self.status = SequenceStatus.WAITING
        self.num_prompt_tokens = len(self.token_ids)
        self.max_length = max_length
        if params.max_tokens is not None:
            self.max_length = min(max_length, self.num_prompt_tokens + params.max_tokens)
        self.min_stop_length = self.num_prompt_tokens + params.min_tokens
        self.stop_token_ids = frozenset(request.stop_token_ids)
        self.drafts: list[int] = []
        self.in_batch = False
        self.num_cached_tokens = -1
        self.blocks_missing = 0
        self.prompt_logprobs: list[TokenLogprobs] | None = None if params.prompt_logprobs is None else []

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of the tokens generated so far."""
        return self.token_ids[self.num_prompt_tokens :]
