"""The op `mamba2`; it is defined in `core_runtime.models.state_ops.mamba2`.

Owns: its formula. Never does: multiply with the projections around it. Called by: `OPS`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from core.api.specs import StateSpec
from core_attention.torch_sdpa.states.convolution import Convolution
from core_attention.torch_sdpa.states.functions import rms_norm, silu, softplus
from core_attention.torch_sdpa.states.recurrence import Recurrence
from core_attention.torch_sdpa.states.step import StateMetadata
from core_attention.torch_sdpa.states.stored import StoredStates


class Mamba2:
    """A `mamba2` layer bound to its cache."""

    def __init__(self, spec: StateSpec, states: StoredStates, params: Mapping[str, Tensor]) -> None:
        sizes = spec.sizes
        numbers = spec.numbers
        self.heads = sizes["heads"]
        self.head_size = sizes["head_size"]
        self.groups = sizes["groups"]
        self.norm = spec.choices["norm"]
        self.norm_groups = sizes["norm_groups"]
        self.norm_eps = numbers["norm_eps"]
        self.norm_weight = params.get("norm.weight")
        self.dt_min = numbers.get("dt_min", 0.0)
        self.dt_max = numbers.get("dt_max")
        self.z_scale = numbers.get("z_scale", 1.0)
        self.dt_scale = numbers.get("dt_scale", 1.0)
        self.dt_bias = params["dt_bias"]
        self.decay_rate = -torch.exp(params["A_log"])
        self.skip = params["D"].unsqueeze(1)

        inner = self.heads * self.head_size
        shared = self.groups * sizes["state"]
        self.widths = [inner, inner + 2 * shared, self.heads]
        self.mixed_widths = [inner, shared, shared]
        scales = [numbers.get(name, 1.0) for name in ("x_scale", "b_scale", "c_scale")]
        by_channel = torch.repeat_interleave(torch.tensor(scales), torch.tensor(self.mixed_widths))
        weight = params["conv1d.weight"]
        scaled = weight * by_channel.to(weight.device).view(-1, 1, 1)
        convolution = Convolution(scaled, params.get("conv1d.bias"))
        per_group = self.heads // self.groups
        shape = (self.groups, per_group, self.head_size, sizes["state"])
        self.recurrence = Recurrence(states, convolution, shape)

    def forward(self, inputs: Tensor, step: StateMetadata, out: Tensor) -> None:
        """Compute out [T, H·P] of inputs [T, W]."""
        num_tokens = step.view.num_tokens
        rows = inputs[:num_tokens].float()
        z, mixed, dt = rows.split(self.widths, dim=1)
        states = self.recurrence.states.read(step.view)
        mixed = self.recurrence.convolve(mixed, states, step)
        x, b, c = mixed.split(self.mixed_widths, dim=1)
        x = x.unflatten(1, (self.heads, self.head_size))
        b = b.unflatten(1, (self.groups, 1, 1, -1))
        c = c.unflatten(1, (self.groups, 1, 1, -1))
        dt = softplus(dt * self.dt_scale + self.dt_bias)
        dt = dt.clamp(self.dt_min, self.dt_max)
        decay = torch.exp(dt * self.decay_rate)

        by_group = (self.groups, -1)
        decay = decay.unflatten(1, (*by_group, 1, 1))
        added = x * dt.unsqueeze(2)
        added = added.unflatten(1, by_group).unsqueeze(4)
        y = self.recurrence.scan(_token, [decay, added, b, c], states, step)
        self.recurrence.states.write(step.view, states)

        y = y.view(x.shape) + x * self.skip
        gate = silu(z * self.z_scale)
        gated = self._gated(y.flatten(1), gate)
        out[:num_tokens].copy_(gated)

    def _gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """Apply gate and norm to y [T, H·P]."""
        if self.norm_weight is None:
            return y * gate
        if self.norm == "after_gate":
            return self._normed(y * gate)
        return self._normed(y) * gate

    def _normed(self, y: Tensor) -> Tensor:
        grouped = y.unflatten(1, (self.norm_groups, -1))
        return self.norm_weight * rms_norm(grouped, self.norm_eps).flatten(1)


def _token(state: Tensor, decay: Tensor, added: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return y [n, G, H/G, P] of one token and update state [n, G, H/G, P, N] in place."""
    state.mul_(decay).add_(added * b)
    return (state * c).sum(-1)
