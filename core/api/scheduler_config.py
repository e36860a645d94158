"""Limits and policy of an engine's scheduler: a part of the resolved configuration.

Owns: `SchedulerConfig`. Never does: resolve or validate. Called by: `core.api.config`, where everybody takes it from.
"""

from __future__ import annotations

import msgspec


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and policy of the scheduler. All in tokens or sequences.

    max_num_mixed_batched_tokens: prompt tokens of a step that gives some request a token; 0: as many as the budget leaves.
    reserve_full_prompt:          admit a request only when its whole prompt has room.
    async_scheduling:             plan a step while the one before runs.
    stream_interval:              tokens between two streamed outputs.
    max_num_queued_reqs:          requests that may wait for a first token; 0: any number.
    max_num_queued_tokens:        their prompt tokens; 0: any number.
    max_stall_s:                  seconds that a stream may wait for prompts of others between two tokens; 0.0: any time.
    max_num_reqs_per_key:         requests of one API key that may be under way, waiting or running; 0: any number.
    max_num_queued_reqs_per_key:  requests of one API key that may wait for a first token; 0: any number.
    max_num_queued_tokens_per_key: their prompt tokens; 0: any number.
    request_timeout_s:            seconds until a request without a timeout of its own ends; 0.0: never.
    policy:                       name of the `policy` plugin.
    num_speculative_tokens:       most drafts of a sequence in a step; 0: there is no speculation.
    adaptive_drafts:              choose how many by what they bring; False: always the most.
    disable_drafts_by_batch_size: with more sequences than so many waiting and running, new ones never have drafts; 0: they do.
    drafts_by_batch_size:         rows of (first size of the batch, last size, drafts of a sequence); other sizes: the most.
    draft_max_model_len:          tokens of the longest sequence that has drafts; 0: max_model_len.
    """

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int = 2048
    enable_chunked_prefill: bool = True
    max_num_mixed_batched_tokens: int = 0
    long_prefill_token_threshold: int = 0
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    reserve_full_prompt: bool = True
    async_scheduling: bool = False
    stream_interval: int = 1
    max_num_queued_reqs: int = 0
    max_num_queued_tokens: int = 0
    request_timeout_s: float = 0.0
    policy: str = "fcfs"
    num_speculative_tokens: int = 0
    max_stall_s: float = 0.0
    max_num_reqs_per_key: int = 0
    max_num_queued_reqs_per_key: int = 0
    max_num_queued_tokens_per_key: int = 0
    adaptive_drafts: bool = False
    disable_drafts_by_batch_size: int = 0
    drafts_by_batch_size: tuple[tuple[int, int, int], ...] = ()
    draft_max_model_len: int = 0

    @property
    def learns_costs(self) -> bool:
        """Whether the scheduler goes by what steps cost, and therefore learns from each of them."""
        chooses_drafts = self.num_speculative_tokens > 0 and self.adaptive_drafts
        return self.max_stall_s > 0.0 or chooses_drafts

    @property
    def rows_per_sequence(self) -> int:
        """Rows of logits that one sequence can sample from in a step: one, and one for each draft to verify."""
        return 1 + self.num_speculative_tokens

    @property
    def max_step_tokens(self) -> int:
        """Most tokens, drafts included, by which the steps under way may advance one sequence."""
        chunk = self.max_num_batched_tokens
        if not self.enable_chunked_prefill:
            chunk = max(chunk, self.max_model_len)
        return (chunk + self.num_speculative_tokens) * (2 if self.async_scheduling else 1)
