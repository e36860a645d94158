"""The op `kda`; it is defined in `core_runtime.models.state_ops.kda`.

Owns: its formula. Never does: multiply with the projections around it. Called by: `OPS`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from core.api.specs import StateSpec
from core_attention.torch_sdpa.states import delta
from core_attention.torch_sdpa.states.functions import product, rms_norm, sigmoid, softplus
from core_attention.torch_sdpa.states.recurrence import Recurrence
from core_attention.torch_sdpa.states.step import StateMetadata
from core_attention.torch_sdpa.states.stored import StoredStates


class Kda:
    """A `kda` layer bound to its cache."""

    def __init__(self, spec: StateSpec, states: StoredStates, params: Mapping[str, Tensor]) -> None:
        sizes = spec.sizes
        self.heads = sizes["heads"]
        self.key_size = sizes["key_size"]
        self.value_size = sizes["value_size"]
        self.qk_eps = spec.numbers["qk_eps"]
        self.norm_eps = spec.numbers["norm_eps"]
        self.decay_floor = spec.numbers.get("decay_floor")
        self.norm_weight = params["o_norm.weight"]
        self.rate = torch.exp(params["A_log"]).view(self.heads, 1)
        self.dt_bias = params["dt_bias"]
        self.f_b_proj = params.get("f_b_proj.weight")
        self.g_b_proj = params.get("g_b_proj.weight")

        keys = self.heads * self.key_size
        values = self.heads * self.value_size
        decay_width = sizes["decay_rank"] or keys
        gate_width = sizes["gate_rank"] or values
        self.widths = [2 * keys + values, decay_width, self.heads, gate_width]
        self.mixed_widths = [keys, keys, values]
        shape = (self.heads, self.value_size, self.key_size)
        self.recurrence = Recurrence(states, delta.convolution(params), shape)

    def forward(self, inputs: Tensor, step: StateMetadata, out: Tensor) -> None:
        """Compute out [T, H·V] of inputs [T, W]."""
        num_tokens = step.view.num_tokens
        rows = inputs[:num_tokens].float()
        mixed, f, b, g = rows.split(self.widths, dim=1)
        states = self.recurrence.states.read(step.view)
        mixed = self.recurrence.convolve(mixed, states, step)
        q, k, v = mixed.split(self.mixed_widths, dim=1)
        q, k = delta.unit_heads(q, k, self.key_size, self.qk_eps)
        v = v.unflatten(1, (self.heads, -1))
        beta = sigmoid(b).unsqueeze(2)
        decay = self._decay(f).unsqueeze(2)
        q = q.unsqueeze(2)
        k = k.unsqueeze(2)
        o = self.recurrence.scan(delta.token, [decay, q, k, v, beta], states, step)
        self.recurrence.states.write(step.view, states)
        gate = g if self.g_b_proj is None else product(g, self.g_b_proj)
        normed = self.norm_weight * rms_norm(o, self.norm_eps)
        out[:num_tokens].copy_(normed.flatten(1) * sigmoid(gate))

    def _decay(self, f: Tensor) -> Tensor:
        """Return the decay factor of each key channel, [T, H, K]."""
        if self.f_b_proj is not None:
            f = product(f, self.f_b_proj)
        by_head = (f + self.dt_bias).unflatten(1, (self.heads, -1))
        if self.decay_floor is None:
            return torch.exp(-self.rate * softplus(by_head))
        return torch.exp(self.decay_floor * sigmoid(self.rate * by_head))
