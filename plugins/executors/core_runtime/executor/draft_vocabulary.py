"""Logits of a draft that knows some of the target's tokens only, as logits over all of them.

Owns: the places of these tokens. Never does: compute logits or draw. Called by: the draft pass.
"""

from __future__ import annotations

import torch
from torch import Tensor


class SpreadLogits:
    """A buffer whose other entries stay minus infinity: tokens that the draft does not know are never drawn.

    token_ids: int64, the token of each of the draft's logits.
    vocab_size: the target's tokens.
    max_rows: most rows of one call.
    """

    def __init__(self, token_ids: Tensor, vocab_size: int, max_rows: int) -> None:
        self._token_ids = token_ids
        self._spread = torch.full((max_rows, vocab_size), float("-inf"), device=token_ids.device)

    def __call__(self, logits: Tensor) -> Tensor:
        """float32 [R, V] of logits [R, tokens that the draft knows]; valid until the next call."""
        out = self._spread[: len(logits)]
        out.index_copy_(1, self._token_ids, logits)
        return out
