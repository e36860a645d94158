"""How many rows of logits a step computes at once.

Owns: that number. Never does: allocate, or import torch. Called by: the memory plan, and `core.executor.instance.build`, which
reserves the rows. More rows than these go in chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api.config import SchedulerConfig

LEAST_ROWS: Final = 64
"""Reading the head's weights costs nothing extra from about so many rows on; prompts with log-probabilities fill them."""

BUDGET: Final = 16 << 20
"""Bytes of float32 logits up to which more rows than `LEAST_ROWS` are taken, in multiples of them, unless a platform says."""

ITEM_BYTES: Final = 4


def logit_rows(
    vocab_size: int, scheduler: SchedulerConfig, capabilities: Mapping[str, Any], *, is_draft: bool = False
) -> int:
    """One row for each token that a step can sample, as far as the budget goes.

    vocab_size: entries of a row.
    scheduler: its limits on sequences and drafts; each draft has a row of its own.
    capabilities: of the platform, which may have a budget of its own (`logits_bytes`).
    is_draft: whether the rows are those of a draft model, which verifies no drafts.
    """
    budget: int = capabilities.get("logits_bytes", BUDGET)
    num_drafts = 0 if is_draft else scheduler.num_speculative_tokens
    wanted = scheduler.max_num_seqs * (1 + num_drafts)
    multiples = budget // (ITEM_BYTES * vocab_size * LEAST_ROWS)
    return max(LEAST_ROWS, min(wanted, multiples * LEAST_ROWS))
