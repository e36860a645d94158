"""The op `cross_attention`; it is defined in `core_runtime.models.state_ops.cross_attention`.

Owns: keys and values of the encoder's rows, and attention to them. Never does: compute an encoder. Called by: `OPS`.

Rows are computed one at a time by products and sums of a fixed shape, so their bits depend neither on chunks nor on the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from core.api.specs import StateSpec
from core_attention.torch_sdpa.states.step import StateMetadata
from core_attention.torch_sdpa.states.stored import StoredStates, narrowed
from core_runtime.layers.states import StateStore


class CrossAttention:
    """A `cross_attention` layer bound to its cache."""

    def __init__(self, spec: StateSpec, states: StoredStates, params: Mapping[str, Tensor]) -> None:
        self.heads = spec.sizes["heads"]
        self.head_size = spec.sizes["head_size"]
        self.params = params
        shape = (2, spec.sizes["length"], self.heads, self.head_size)
        self.states = StateStore(
            states.raw, shape, states.rest
        )  # read in place: a copy for each token would take longer

    def fill(self, blocks: Tensor, rows: Tensor) -> None:
        """Write keys and values of an encoder's rows [S, W] to a state's blocks, int64 [n]."""
        rows = rows.to(self.states.raw.device)
        keys = F.linear(rows, self.params["k_proj.weight"])
        values = F.linear(rows, self.params["v_proj.weight"], self.params["v_proj.bias"])
        self.states.put(blocks, narrowed(torch.stack((keys, values)), self.states.dtype))

    def forward(self, inputs: Tensor, step: StateMetadata, out: Tensor) -> None:
        """Compute out [T, H·D] of queries inputs [T, H·D]."""
        view = step.view
        queries = inputs[: view.num_tokens].float().view(-1, self.heads, self.head_size) / math.sqrt(self.head_size)
        row = 0
        for index, count in enumerate(view.query_lens):
            keys, values = self.states.one(view, index).float()
            for query in queries[row : row + count]:
                weights = (keys * query).sum(-1).softmax(0)
                out[row].copy_((weights.unsqueeze(-1) * values).sum(0).flatten())
                row += 1
            self.states.move(view, index)
