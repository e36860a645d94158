"""Expansion of a draft's logits over a reduced vocabulary to logits over the target's vocabulary.

Owns: the target's token ids of the draft's logits. Never does: compute logits or draw. Called by: the draft pass.
"""

from __future__ import annotations

import torch
from torch import Tensor


class SpreadLogits:
    """A logits buffer over the target's vocabulary. Tokens that the draft lacks stay at minus infinity and are never
    drawn.

    token_ids: int64, the target's token id of each draft logit.
    vocab_size: size of the target's vocabulary.
    max_rows: maximum rows of one call.
    """

    def __init__(self, token_ids: Tensor, vocab_size: int, max_rows: int) -> None:
        self._token_ids = token_ids
        self._spread = torch.full((max_rows, vocab_size), float("-inf"), device=token_ids.device)

    def __call__(self, logits: Tensor) -> Tensor:
        """Return float32 [R, V] for logits [R, draft vocabulary]; valid until the next call."""
        out = self._spread[: len(logits)]
        out.index_copy_(1, self._token_ids, logits)
        return out
