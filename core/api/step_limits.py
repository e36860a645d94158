"""The limits of one step: sequences, tokens, and rows of logits.

Owns: `StepLimits`, and its computation from the scheduler's arguments and the vocabulary size. Never does: allocate.
Called by: the memory plan (`core_config.stages.sizes`) computes it once for each model; the executor reads it from the
configuration.
"""

from __future__ import annotations

from typing import Final

import msgspec

from core.api.scheduler_config import SchedulerConfig

LEAST_LOGIT_ROWS: Final = 64
"""Minimum of `StepLimits.logit_rows`. Up to about this many rows, the cost is that of reading the head's weights, whatever the
number of rows; prompts with log-probabilities make use of them."""

LOGITS_BYTES: Final = 16 << 20
"""Default budget for a step's float32 logits, in bytes, for rows beyond `LEAST_LOGIT_ROWS`. Platforms may declare another."""

ITEM_BYTES: Final = 4


class StepLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one step of one model. All 0: the configuration has no model.

    sequences:  sequences of the batch.
    tokens:     rows of a forward pass, at least one for each sequence.
    logit_rows: rows of logits that are computed at once; a step with more of them computes them in chunks.
    """

    sequences: int = 0
    tokens: int = 0
    logit_rows: int = 0

    def of_draft(self, vocab_size: int, tokens_ahead: int, logits_bytes: int = LOGITS_BYTES) -> StepLimits:
        """Return the limits of the draft model of a model with these limits.

        vocab_size: entries of one of the draft's rows of logits.
        tokens_ahead: tokens by which a draft's pass over a sequence is longer than the target's.
        logits_bytes: budget of the draft's logits. A draft verifies nothing, so it has one row for each sequence.
        """
        return StepLimits(
            sequences=self.sequences,
            tokens=self.tokens + self.sequences * tokens_ahead,
            logit_rows=_logit_rows(self.sequences, vocab_size, logits_bytes),
        )

    def with_fewer(self, sequences: int, rows_per_sequence: int) -> StepLimits:
        """Return the limits for fewer sequences; forward passes keep their size, since prompts still fill them.

        rows_per_sequence: rows of logits that each sequence samples from.
        """
        wanted = max(LEAST_LOGIT_ROWS, sequences * rows_per_sequence)
        return StepLimits(sequences=sequences, tokens=self.tokens, logit_rows=min(self.logit_rows, wanted))


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


def _logit_rows(wanted: int, vocab_size: int, logits_bytes: int) -> int:
    """Limit `wanted` rows to the budget, which is rounded down to a multiple of `LEAST_LOGIT_ROWS` but never below it."""
    multiples = logits_bytes // (ITEM_BYTES * vocab_size * LEAST_LOGIT_ROWS)
    return max(LEAST_LOGIT_ROWS, min(wanted, multiples * LEAST_LOGIT_ROWS))
