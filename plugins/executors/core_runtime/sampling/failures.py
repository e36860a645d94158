"""Why rows have no token, in sentences.

Owns: these sentences, and which of them a row gets. Never does: draw. Called by: `core_runtime.sampling.sampler` and its parts.
"""

from __future__ import annotations

import numpy as np

from core_runtime.sampling.host_logits import HostLogits
from core_runtime.sampling.noise import Float32
from core_runtime.sampling.part import Part


def explain_failures(part: Part, values: HostLogits) -> None:
    """Say what is wrong with the logits of rows without a token. values: the part's logits."""
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
    """Why adjusted logits leave no token. largest: of them."""
    if largest == -np.inf:
        return (
            "No token can be sampled: allowed_token_ids, bad_words, min_tokens, structured outputs, penalties and logits "
            "processors together rule out the whole vocabulary; relax one of them."
        )
    return f"The penalties make logits that are not finite (largest: {largest}); bring repetition_penalty nearer to 1."


def not_finite(seen: str = "") -> str:
    """What is wrong with a row that has no token although nothing was ruled out. seen: what its logits are."""
    return (
        f"The model's logits for this sequence are not finite{seen}; expected finite numbers. "
        "Try another dtype, or check the checkpoint."
    )


def tops(logits: Float32) -> Float32:
    """The largest logit of each row, NaN where one is NaN."""
    best = logits.argmax(axis=1)
    rows = np.arange(len(best))
    found: Float32 = logits[rows, best]
    return found


def top(row: Float32) -> float:
    """The largest logit of one row, NaN where one is NaN."""
    return float(row[row.argmax()])
