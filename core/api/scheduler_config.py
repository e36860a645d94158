"""Limits and policy of an engine's scheduler: a part of the resolved configuration.

Owns: `SchedulerConfig`. Never does: resolve or validate. Called by: `core.api.config`, from which all others import it.
"""

from __future__ import annotations

import msgspec


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and policy of the scheduler. Units are tokens or sequences, where the name does not say otherwise.

    max_num_mixed_batched_tokens: limit of prompt tokens in a step that also decodes; 0: what the budget leaves.
    queued_prompts_weight:        how much a queue of prompts enlarges that limit; 0.0: not at all.
    reserve_full_prompt:          admit a request only when its whole prompt has room.
    async_scheduling:             plan a step while the previous one runs.
    stream_interval:              tokens between two streamed outputs.
    max_num_queued_reqs, max_num_queued_tokens: limits of requests that wait for a first token, and of their prompts; 0: none.
    max_stall_s:                  limit of the seconds that prefill may delay a stream's next token; 0.0: no limit.
    max_num_reqs_per_key:         limit of requests of one API key, waiting or running; 0: no limit.
    max_num_queued_reqs_per_key, max_num_queued_tokens_per_key: limits of those that wait, and of their prompts; 0: no limit.
    request_timeout_s:            seconds until a request without a timeout of its own ends; 0.0: never.
    policy:                       name of the `policy` plugin.
    num_speculative_tokens:       limit of drafts per sequence and step; 0: no speculation.
    adaptive_drafts:              choose the number of drafts by measured benefit; False: always the limit.
    disable_drafts_by_batch_size: with more sequences than this waiting and running, new ones never get drafts; 0: no limit.
    drafts_by_batch_size:         rows of (first batch size, last batch size, drafts per sequence); other sizes: the limit.
    draft_max_model_len:          tokens of the longest sequence that gets drafts; 0: max_model_len.
    max_adapters:                 limit of different adapters of running sequences; 0: no limit.
    """

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int = 2048
    enable_chunked_prefill: bool = True
    max_num_mixed_batched_tokens: int = 0
    queued_prompts_weight: float = 0.0
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
    max_adapters: int = 0

    @property
    def learns_costs(self) -> bool:
        """Whether the scheduler uses a model of step costs, and therefore measures every step."""
        chooses_drafts = self.num_speculative_tokens > 0 and self.adaptive_drafts
        return self.max_stall_s > 0.0 or chooses_drafts

    @property
    def rows_per_sequence(self) -> int:
        """Maximum rows of logits of one sequence in a step: one, and one for each draft to verify."""
        return 1 + self.num_speculative_tokens

    @property
    def max_step_tokens(self) -> int:
        """Maximum tokens, including drafts, by which the steps in flight may advance one sequence."""
        chunk = self.max_num_batched_tokens
        if not self.enable_chunked_prefill:
            chunk = max(chunk, self.max_model_len)
        return (chunk + self.num_speculative_tokens) * (2 if self.async_scheduling else 1)
