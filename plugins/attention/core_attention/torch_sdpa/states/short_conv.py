"""The op `short_conv`; it is defined at `core.api.specs.StateSpec`.

Owns: y = C * convolution of B * x. Never does: multiply with the projections around it. Called by: `OPS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from core.api.specs import StateSpec
from core_attention.torch_sdpa.states.convolution import Convolution
from core_attention.torch_sdpa.states.step import StateMetadata
from core_attention.torch_sdpa.states.stored import StoredStates


class ShortConv:
    """A `short_conv` layer bound to its cache."""

    def __init__(self, spec: StateSpec, states: StoredStates, params: Mapping[str, Tensor]) -> None:
        self.channels = spec.sizes["channels"]
        self.convolution = Convolution(params["conv.weight"], params.get("conv.bias"), states.window)
        self.states = states

    def forward(self, inputs: Tensor, step: StateMetadata, out: Tensor) -> None:
        """Compute out [T, C] of inputs [T, 3 C]."""
        num_tokens = step.view.num_tokens
        inputs = inputs[:num_tokens]
        b, c, x = inputs.float().split(self.channels, dim=1)
        before = self.states.read(step.view).unflatten(1, (self.convolution.past, self.channels))
        y, after = self.convolution(b * x, before, step)
        window = after.flatten(1)
        self.states.write(step.view, window)
        out[:num_tokens].copy_(c * y)
