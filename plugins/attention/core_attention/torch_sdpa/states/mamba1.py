"""The op `mamba1`; it is defined in `core_runtime.models.state_ops.mamba1`.

Owns: its formula. Never does: multiply with the projections around it. Called by: `OPS`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from core.api.specs import StateSpec
from core_attention.torch_sdpa.states.convolution import Convolution
from core_attention.torch_sdpa.states.functions import product, rms_norm, silu, softplus
from core_attention.torch_sdpa.states.recurrence import Recurrence
from core_attention.torch_sdpa.states.step import StateMetadata
from core_attention.torch_sdpa.states.stored import StoredStates


class Mamba1:
    """A `mamba1` layer bound to its cache."""

    def __init__(self, spec: StateSpec, states: StoredStates, params: Mapping[str, Tensor]) -> None:
        sizes = spec.sizes
        self.channels = sizes["channels"]
        self.widths = [sizes["rank"], sizes["state"], sizes["state"]]
        self.normed = spec.choices["norm"] != "none"
        self.norm_eps = spec.numbers["norm_eps"]
        names = ("dt_layernorm.weight", "b_layernorm.weight", "c_layernorm.weight")
        self.norm_weights = [params.get(name) for name in names]
        self.x_proj = params["x_proj.weight"]
        self.dt_proj = params["dt_proj.weight"]
        self.dt_bias = params["dt_proj.bias"]
        self.decay_rate = -torch.exp(params["A_log"])
        self.skip = params["D"]
        convolution = Convolution(params["conv1d.weight"], params.get("conv1d.bias"))
        self.recurrence = Recurrence(states, convolution, (self.channels, sizes["state"]))

    def forward(self, inputs: Tensor, step: StateMetadata, out: Tensor) -> None:
        """Compute out [T, D] of inputs [T, 2 D]."""
        num_tokens = step.view.num_tokens
        x, z = inputs[:num_tokens].float().split(self.channels, dim=1)
        states = self.recurrence.states.read(step.view)
        x = self.recurrence.convolve(x, states, step)
        selected = product(x, self.x_proj).split(self.widths, dim=1)
        if self.normed:
            selected = tuple(map(self._normed, selected, self.norm_weights))
        rank, b, c = selected
        dt = softplus(product(rank, self.dt_proj) + self.dt_bias)
        added = (dt * x).unsqueeze(2)
        rows = [dt.unsqueeze(2), added, b.unsqueeze(1), c.unsqueeze(1)]
        y = self.recurrence.scan(self._token, rows, states, step)
        self.recurrence.states.write(step.view, states)
        out[:num_tokens].copy_((y + x * self.skip) * silu(z))

    def _token(self, state: Tensor, dt: Tensor, added: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Return y [n, D] of one token and update state [n, D, N] in place."""
        decay = torch.exp(dt * self.decay_rate)
        state.mul_(decay).add_(added * b)
        return (state * c).sum(-1)

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        normed = rms_norm(x, self.norm_eps)
        return normed if weight is None else weight * normed
