"""How many rows of logits a step computes at once.

Owns: that number. Never does: allocate, or import torch. Called by: the memory plan, the worker (which reserves the rows)
and, through it, everything that asks for logits. More rows than these go in chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LEAST_ROWS: Final = 64
"""Reading the head's weights costs nothing extra from about so many rows on; prompts with log-probabilities fill them."""

BUDGET: Final = 16 << 20
"""Bytes of float32 logits up to which more rows than `LEAST_ROWS` are taken, in multiples of them, unless a platform says."""

ITEM_BYTES: Final = 4


def logit_rows(
    vocab_size: int, max_num_seqs: int, num_speculative_tokens: int, capabilities: Mapping[str, Any] | None = None
) -> int:
    """One row for each token that a step can sample, as far as the budget goes.

    vocab_size: entries of a row.
    max_num_seqs: most sequences of a step.
    num_speculative_tokens: most drafts of a sequence; each has a row of its own.
    capabilities: of the platform, which may have a budget of its own (`logits_bytes`).
    """
    budget: int = (capabilities or {}).get("logits_bytes", BUDGET)
    wanted = max_num_seqs * (1 + num_speculative_tokens)
    multiples = budget // (ITEM_BYTES * vocab_size * LEAST_ROWS)
    return max(LEAST_ROWS, min(wanted, multiples * LEAST_ROWS))
