"""Configuration of an engine after the system has killed the previous one for lack of memory.

Owns: `degraded_config`. Never does: start an engine, or know how much memory there is. Called by: the source of engines.

Memory grows with use: pages of the KV cache count when they are first written, and cached prefixes fill all blocks in the end.
So the number of blocks is reduced as well as the number of sequences.
"""

from __future__ import annotations

import msgspec

from core.api.config import EngineConfig
from core.api.step_limits import LEAST_LOGIT_ROWS, StepLimits

SPARE_BLOCKS = 2
"""Blocks in addition to those of the longest sequence; one of them is the null block."""


def degraded_config(config: EngineConfig, num_blocks: int) -> EngineConfig:
    """Return the configuration with half as many sequences at a time and half the KV cache, or enough for the longest sequence.

    num_blocks: blocks of the engine that died.
    """
    num_seqs = max(1, config.scheduler.max_num_seqs // 2)
    scheduler = msgspec.structs.replace(config.scheduler, max_num_seqs=num_seqs)
    limits = _with_fewer(config.limits, num_seqs, scheduler.rows_per_sequence)
    draft = config.draft
    if draft is not None:
        draft = msgspec.structs.replace(draft, limits=_with_fewer(draft.limits, num_seqs, 1))
    fewer = max(num_blocks // 2, _least_blocks(config))
    cache = msgspec.structs.replace(config.cache, num_blocks=min(fewer, num_blocks))
    return msgspec.structs.replace(config, scheduler=scheduler, limits=limits, draft=draft, cache=cache)


def _with_fewer(limits: StepLimits, sequences: int, rows_per_sequence: int) -> StepLimits:
    """Return the limits for fewer sequences; forward passes keep their size, since prompts still fill them.

    rows_per_sequence: rows of logits that each sequence samples from.
    """
    wanted = max(LEAST_LOGIT_ROWS, sequences * rows_per_sequence)
    return StepLimits(sequences=sequences, tokens=limits.tokens, logit_rows=min(limits.logit_rows, wanted))


def _least_blocks(config: EngineConfig) -> int:
    """Return the number of blocks with which one sequence of the greatest length can run."""
    cache = config.cache
    length = config.model.max_model_len + config.scheduler.num_speculative_tokens + 1
    num_groups = max(len(cache.groups), 1)
    of_tokens = num_groups * -(-length // cache.block_size)
    of_states = sum(group.num_state_blocks + group.num_spare_blocks for group in cache.groups)
    return of_tokens + of_states + SPARE_BLOCKS
