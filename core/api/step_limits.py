"""The limits of one step: sequences, tokens, and rows of logits.

Owns: `StepLimits`. Never does: allocate, or compute limits from arguments (`core_config.stages.step_limits` does, once for each
model). Called by: the configuration, which carries them; the executor, which reads them.
"""

from __future__ import annotations

from typing import Final

import msgspec

LEAST_LOGIT_ROWS: Final = 64
"""Minimum of `StepLimits.logit_rows`. Up to about this many rows, the cost is that of reading the head's weights, whatever the
number of rows; prompts with log-probabilities make use of them."""


class StepLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one step of one model. All 0: the configuration has no model.

    sequences:  sequences of the batch.
    tokens:     rows of a forward pass, at least one for each sequence.
    logit_rows: rows of logits that are computed at once; a step with more of them computes them in chunks.
    """

    sequences: int = 0
    tokens: int = 0
    logit_rows: int = 0
