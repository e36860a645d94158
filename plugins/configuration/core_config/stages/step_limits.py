"""The limits of a step, from the scheduler's arguments and the size of the vocabulary.

Owns: `step_limits` and `draft_limits`. Never does: allocate. Called by: the memory plan, once for each model.
"""

from __future__ import annotations

from typing import Final

from core.api.scheduler_config import SchedulerConfig
from core.api.step_limits import LEAST_LOGIT_ROWS, StepLimits

LOGITS_BYTES: Final = 16 << 20
"""Default budget for a step's float32 logits, in bytes, for rows beyond `LEAST_LOGIT_ROWS`. Platforms may declare another."""

ITEM_BYTES: Final = 4


def step_limits(scheduler: SchedulerConfig, vocab_size: int, logits_bytes: int = LOGITS_BYTES) -> StepLimits:
    """Compute the limits of a model: a row of logits for each token that a step samples, as far as the budget goes.

    scheduler: its limits of sequences, tokens and drafts; each draft has a row of logits of its own.
    vocab_size: entries of a row.
    logits_bytes: the budget, which a platform declares under this name.
    """
    sequences = scheduler.max_num_seqs
    return StepLimits(
        sequences=sequences,
        tokens=max(scheduler.max_num_batched_tokens, sequences),
        logit_rows=_logit_rows(sequences * scheduler.rows_per_sequence, vocab_size, logits_bytes),
    )


def draft_limits(
    target: StepLimits, vocab_size: int, tokens_ahead: int, logits_bytes: int = LOGITS_BYTES
) -> StepLimits:
    """Compute the limits of the draft model of a model with the limits `target`.

    vocab_size: entries of one of the draft's rows of logits.
    tokens_ahead: tokens by which a draft's pass over a sequence is longer than the target's.
    logits_bytes: budget of the draft's logits. A draft verifies nothing, so it has one row for each sequence.
    """
    return StepLimits(
        sequences=target.sequences,
        tokens=target.tokens + target.sequences * tokens_ahead,
        logit_rows=_logit_rows(target.sequences, vocab_size, logits_bytes),
    )


def _logit_rows(wanted: int, vocab_size: int, logits_bytes: int) -> int:
    """Limit `wanted` rows to the budget, which is rounded down to a multiple of `LEAST_LOGIT_ROWS` but never below it."""
    multiples = logits_bytes // (ITEM_BYTES * vocab_size * LEAST_LOGIT_ROWS)
    return max(LEAST_LOGIT_ROWS, min(wanted, multiples * LEAST_LOGIT_ROWS))
