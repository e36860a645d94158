"""The op `gated_delta`; it is defined in `core_runtime.models.state_ops.gated_delta`.

Owns: its formula. Never does: multiply with the projections around it. Called by: `OPS`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from core.api.specs import StateSpec
from core_attention.torch_sdpa.states import delta
from core_attention.torch_sdpa.states.functions import rms_norm, sigmoid, silu, softplus
from core_attention.torch_sdpa.states.recurrence import Recurrence
from core_attention.torch_sdpa.states.step import StateMetadata
from core_attention.torch_sdpa.states.stored import StoredStates


class GatedDelta:
    """A `gated_delta` layer bound to its cache. Value heads are split into (key head, value head of that key head)."""

    def __init__(self, spec: StateSpec, states: StoredStates, params: Mapping[str, Tensor]) -> None:
        sizes = spec.sizes
        numbers = spec.numbers
        self.key_size = sizes["key_size"]
        self.heads = sizes["key_heads"], sizes["value_heads"] // sizes["key_heads"]
        self.qk_eps = numbers["qk_eps"]
        self.norm_eps = numbers["norm_eps"]
        self.beta_scale = numbers.get("beta_scale", 1.0)
        self.norm_weight = params["norm.weight"]
        self.decay_rate = -torch.exp(params["A_log"])
        self.dt_bias = params["dt_bias"]

        keys = sizes["key_heads"] * self.key_size
        values = sizes["value_heads"] * sizes["value_size"]
        self.widths = [2 * keys + values, values, sizes["value_heads"], sizes["value_heads"]]
        self.mixed_widths = [keys, keys, values]
        shape = (*self.heads, sizes["value_size"], self.key_size)
        self.recurrence = Recurrence(states, delta.convolution(params), shape)

    def forward(self, inputs: Tensor, step: StateMetadata, out: Tensor) -> None:
        """Compute out [T, Hv·V] of inputs [T, W]."""
        num_tokens = step.view.num_tokens
        rows = inputs[:num_tokens].float()
        mixed, z, b, a = rows.split(self.widths, dim=1)
        states = self.recurrence.states.read(step.view)
        mixed = self.recurrence.convolve(mixed, states, step)
        q, k, v = mixed.split(self.mixed_widths, dim=1)
        q, k = delta.unit_heads(q, k, self.key_size, self.qk_eps)
        q = q.unflatten(1, (-1, 1, 1))
        k = k.unflatten(1, (-1, 1, 1))
        v = v.unflatten(1, (*self.heads, -1))
        beta = self.beta_scale * sigmoid(b)
        beta = beta.unflatten(1, (*self.heads, 1))
        decay = torch.exp(self.decay_rate * softplus(a + self.dt_bias))
        decay = decay.unflatten(1, (*self.heads, 1, 1))
        o = self.recurrence.scan(delta.token, [decay, q, k, v, beta], states, step)
        self.recurrence.states.write(step.view, states)
        normed = self.norm_weight * rms_norm(o, self.norm_eps)
        out[:num_tokens].copy_(normed.flatten(1) * silu(z))
