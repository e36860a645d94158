"""The op `lightning`; it is defined in `core_runtime.models.state_ops.lightning`.

Owns: its formula. Never does: multiply with the projections around it. Called by: `OPS`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from core.api.specs import StateSpec
from core_attention.torch_sdpa.states.functions import rms_norm, sigmoid, silu
from core_attention.torch_sdpa.states.recurrence import Recurrence
from core_attention.torch_sdpa.states.step import StateMetadata
from core_attention.torch_sdpa.states.stored import StoredStates
from core_runtime.models.state_ops.lightning import slopes


class Lightning:
    """A `lightning` layer bound to its cache. Its state is kept with the numbers of keys last, over which it is summed."""

    def __init__(self, spec: StateSpec, states: StoredStates, params: Mapping[str, Tensor]) -> None:
        heads = spec.sizes["heads"]
        self.head_size = spec.sizes["head_size"]
        self.width = heads * self.head_size
        self.norm_eps = spec.numbers["norm_eps"]
        self.norm_weight = params["norm.weight"]
        rates = torch.tensor(slopes(spec), dtype=torch.float32, device=self.norm_weight.device)
        self.decay = torch.exp(-rates).view(1, heads, 1, 1)
        self.recurrence = Recurrence(states, None, (heads, self.head_size, self.head_size))

    def forward(self, inputs: Tensor, step: StateMetadata, out: Tensor) -> None:
        """Compute out [T, H·D] of inputs [T, 4·H·D]."""
        num_tokens = step.view.num_tokens
        rows = inputs[:num_tokens].float()
        mixed, gate = rows.split([3 * self.width, self.width], dim=1)
        q, k, v = silu(mixed).view(num_tokens, 3, -1, self.head_size).unbind(1)
        states = self.recurrence.states.read(step.view)
        o = self.recurrence.scan(self._token, [q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(3)], states, step)
        self.recurrence.states.write(step.view, states)
        normed = self.norm_weight * rms_norm(o.flatten(1), self.norm_eps)
        out[:num_tokens].copy_(normed * sigmoid(gate))

    def _token(self, state: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return o [n, H, D] of one token and update state [n, H, D, D] in place. q, k [n, H, 1, D]; v [n, H, D, 1]."""
        state.mul_(self.decay)
        state.add_(v * k)
        return (state * q).sum(-1)
