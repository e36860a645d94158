"""Embeddings for each layer: a second embedding, of which every block takes its part.

Owns: the order of their operations. Never does: allocate during a step. Called by: the decoder, once a step and once a block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from core_runtime.contracts import LinearKernel
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.workspace import Workspace, by_heads
from core_runtime.models.norm import Norm
from core_runtime.models.tail import move_rows
from core_runtime.specs.decoder_spec import DecoderSpec


@dataclass(slots=True)
class LayerInputWeights:
    """The prepared weights outside of blocks.

    tokens: the matrix, one row a token. project: projection of the usual embedding. norm: norm of each block's part of it.
    """

    tokens: LinearKernel
    project: Linear
    norm: Norm


class LayerInputViews:
    """The buffers of one step: inputs, tokens [T, blocks * P]; by_block [T, blocks, P]; gate, activated [T, P]."""

    __slots__ = ("activated", "by_block", "gate", "inputs", "tokens")

    def __init__(self, workspace: Workspace, num_tokens: int, count: int) -> None:
        self.inputs = workspace.view("layer_inputs", num_tokens)
        self.tokens = workspace.view("layer_tokens", num_tokens)
        self.by_block = by_heads(self.inputs, count)
        self.gate = workspace.view("layer_gate", num_tokens)
        self.activated = workspace.view("layer_activated", num_tokens)


class LayerInputsStep:
    """The embeddings for each layer of a decoder."""

    def __init__(self, spec: DecoderSpec, weights: LayerInputWeights, kernels: KernelSet, workspace: Workspace) -> None:
        assert spec.layer_inputs is not None
        self._spec = spec.layer_inputs
        self._hidden = spec.hidden_size
        self._is_smaller = self._spec.vocab_size < spec.vocab_size
        self._activation = spec.mlp.activation
        self._weights = weights
        self._kernels = kernels
        count = self._spec.count
        self._views = workspace.cached("layer inputs", lambda rows: LayerInputViews(workspace, rows, count))

    def embed(self, token_ids: Tensor, embedded: Tensor) -> None:
        """Compute the inputs of all blocks from token_ids, int64 [T], and the usual embeddings [T, H]."""
        views = self._views(token_ids.shape[0])
        if self._is_smaller:
            # Tokens beyond the second embedding have the row of the first token there.
            token_ids = token_ids.masked_fill(token_ids >= self._spec.vocab_size, 0)
        for token in self._spec.media:
            token_ids = token_ids.masked_fill(token_ids == token, self._spec.pad)
        self._weights.tokens.rows(token_ids, views.tokens)
        self._kernels.scale(views.tokens, math.sqrt(self._spec.size))
        self._weights.project(embedded, views.inputs)
        self._kernels.scale(views.inputs, self._hidden**-0.5)
        self._weights.norm.heads(views.by_block)
        self._kernels.add(views.tokens, views.inputs)
        self._kernels.scale(views.inputs, math.sqrt(0.5))

    def move(self, num_tokens: int, rows: Tensor) -> None:
        """Move rows, int64 [K], of the inputs of a step of `num_tokens` rows to its first K ones."""
        move_rows(self._views(num_tokens).inputs, rows)

    def __call__(self, index: int, linears: Mapping[str, Linear], norm: Norm, x: Tensor, branch: Tensor) -> None:
        """Write the part of block `index` to branch [T, H], from the stream x [T, H]. linears: of the block, by role."""
        views = self._views(x.shape[0])
        linears["layer_gate"](x, views.gate)
        self._kernels.activate(views.gate, self._activation, views.activated)
        views.activated.mul_(views.by_block[:, index])
        linears["layer_out"](views.activated, branch)
        norm(branch, branch)
