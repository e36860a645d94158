"""Error messages of rows without a token.

Owns: the messages, and which of them a row gets. Never does: draw. Called by: `core_runtime.sampling.sampler` and its parts.
"""

from __future__ import annotations

import numpy as np

from core_runtime.sampling.changes.host_logits import HostLogits
from core_runtime.sampling.noise import Float32
from core_runtime.sampling.part import Part


def explain_failures(part: Part, values: HostLogits) -> None:
    """Set the errors of rows without a token. values: the part's logits."""
    rows = part.rows
    tokens = rows.tokens[part.start : part.stop]
    failed = (tokens < 0).nonzero()[0]
    for place in failed.tolist():
        row = part.start + place
        if row in rows.errors:
            continue
        largest = top(values[place])
        is_masked = part.masks is not None and part.masks.words_of(place) is not None
        if is_masked and np.isfinite(largest):
            rows.errors[row] = nothing_left(-np.inf)
        else:
            rows.errors[row] = not_finite(f" (largest: {largest})")


def nothing_left(largest: float) -> str:
    """Return why adjusted logits leave no token. largest: the largest of them."""
    if largest == -np.inf:
        return (
            "No token can be sampled: allowed_token_ids, bad_words, min_tokens, structured outputs, penalties and logits "
            "processors together rule out the whole vocabulary; relax one of them."
        )
    return f"The penalties make logits that are not finite (largest: {largest}); bring repetition_penalty nearer to 1."


def not_finite(seen: str = "") -> str:
    """Return the error of a row that has bad logits although nothing was ruled out. seen: a description of the logits."""
    return (
        f"The model's logits for this sequence are not finite{seen}; expected finite numbers. "
        "Try another dtype, or check the checkpoint."
    )


def tops(logits: Float32) -> Float32:
    """Return the largest logit of each row, NaN if one is NaN."""
    best = logits.argmax(axis=1)
    rows = np.arange(len(best))
    found: Float32 = logits[rows, best]
    return found


def top(row: Float32) -> float:
    """Return the largest logit of one row, NaN if one is NaN."""
    return float(row[row.argmax()])
