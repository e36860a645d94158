"""The computation of Medusa's heads.

Owns: their matrices. Never does: draw tokens. Called by: the draft pass, through `core_runtime.contracts.DraftHeads`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from core.api.errors import UserError
from core.plugin.hookspecs import LoadContext
from core_runtime.contracts import DraftView, LinearKernel
from core_runtime.specs.checkpoint import CheckpointManifest
from core_speculative.head_weights import check_shapes, product, read_tensors
from core_speculative.medusa.layout import HeadNames, MedusaShape, shape_of


class MedusaHeads:
    """Implements `core_runtime.contracts.DraftHeads`: draft i comes from head i and the last hidden state alone."""

    def __init__(self, context: LoadContext) -> None:
        assert context.manifest is not None, "heads are built from a checkpoint"
        shape = shape_of(context.manifest.tensors, context.manifest.config)
        self._heads = shape.heads
        self._own_head: LinearKernel | None = context.options.get("head")
        if self._own_head is not None:
            vocab_size, hidden_size = self._own_head.shape
            check_shapes(context, shape.expected(vocab_size, hidden_size, _tokens(context, shape)))
        self._tensors = read_tensors(context, shape.names)
        self._token_map = None if shape.token_map is None else self._tensors[shape.token_map].long()

    @property
    def num_drafts(self) -> int:
        """Return the maximum number of drafts in a step: one for each head."""
        return len(self._heads)

    def logits(self, view: DraftView, step: int) -> Tensor:
        """Return the logits of a draft, by the `DraftHeads` contract."""
        assert view.hidden is not None, "the specification asks for the last hidden state"
        names = self._heads[step]
        hidden = self._through_blocks(view.hidden, names)
        if names.head is not None:
            return self._spread(product(hidden, self._tensors[names.head]).float())
        if self._own_head is None:
            raise UserError("medusa: the draft has no head of its own, and the model shows none.")
        out = torch.empty(len(hidden), self._own_head.shape[0], dtype=torch.float32, device=hidden.device)
        self._own_head(hidden.to(view.hidden.dtype).contiguous(), out)
        return out

    def _through_blocks(self, hidden: Tensor, names: HeadNames) -> Tensor:
        for weight, bias in names.blocks:
            added = None if bias is None else self._tensors[bias]
            hidden = hidden + silu(product(hidden, self._tensors[weight], added))
        return hidden

    def _spread(self, logits: Tensor) -> Tensor:
        """Return logits of all tokens, from those of the heads' own vocabulary; -inf for all others."""
        if self._token_map is None or self._own_head is None:
            return logits
        spread = logits.new_full((len(logits), self._own_head.shape[0]), float("-inf"))
        spread[:, self._token_map] = logits
        return spread


def _tokens(context: LoadContext, shape: MedusaShape) -> int | None:
    """Return the number of tokens in the heads' own vocabulary, None for all."""
    manifest: CheckpointManifest | None = context.manifest
    if shape.token_map is None or manifest is None:
        return None
    (count,) = manifest.tensors[shape.token_map].shape
    return count
