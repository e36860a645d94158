"""The computation of an MLP speculator.

Owns: its matrices, and the state of each sequence within a step. Never does: draw tokens.
Called by: the draft pass, through `core_runtime.contracts.DraftHeads`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import gelu

from core.plugin.hookspecs import LoadContext
from core_runtime.contracts import DraftView
from core_speculative.head_weights import check_shapes, product, read_tensors
from core_speculative.mlp_speculator.layout import EPS, StageNames, shape_of


class MLPHeads:
    """Implements `core_runtime.contracts.DraftHeads`: the state starts as the hidden state and is updated with each
    drawn token.
    """

    def __init__(self, context: LoadContext) -> None:
        assert context.manifest is not None, "heads are built from a checkpoint"
        self._shape = shape_of(context.manifest.tensors, context.manifest.config)
        check_shapes(context, self._shape.expected)
        self._tensors = read_tensors(context, self._shape.names)
        self._rows: dict[tuple[str, int], int] = {}
        self._state = torch.empty(0)

    @property
    def num_drafts(self) -> int:
        """Return the maximum number of drafts in a step: one for each stage."""
        return len(self._shape.stages)

    def logits(self, view: DraftView, step: int) -> Tensor:
        """Return the logits of a draft, by the `DraftHeads` contract."""
        stage = self._shape.stages[step]
        state = self._begin(view) if step == 0 else self._state_of(view)
        embedded = self._tensors[stage.embedding][view.tokens]
        projected = product(state, self._tensors[stage.projection])
        share = self._shape.token_weight / self._shape.state_weight
        state = gelu(self._normed(projected + share * embedded, stage))
        self._rows = {key: row for row, key in enumerate(view.keys)}
        self._state = state
        return product(state, self._tensors[stage.head]).float()

    def _begin(self, view: DraftView) -> Tensor:
        """Return the state of each sequence before its first draft."""
        assert view.hidden is not None, "the specification asks for the last hidden state"
        if not self._shape.scales_input:
            return view.hidden
        return _unit(view.hidden) / math.sqrt(2)

    def _state_of(self, view: DraftView) -> Tensor:
        """Return the state after the previous draft. Sequences may have left the batch since."""
        rows = [self._rows[key] for key in view.keys]
        return self._state[torch.tensor(rows, device=self._state.device)]

    def _normed(self, x: Tensor, stage: StageNames) -> Tensor:
        return _unit(x) * self._tensors[stage.norm] + self._tensors[stage.norm_bias]


def _unit(x: Tensor) -> Tensor:
    """Scale x [B, N] to a mean square of one, in its own dtype."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    return (wide * scale).to(x.dtype)
