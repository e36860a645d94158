"""The op `short_conv`; it is defined at `core.api.specs.StateSpec`.

Owns: y = C * convolution of B * x. Never does: multiply with the projections around it. Called by: `OPS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from core.api.specs import StateSpec
from core_attention.torch_sdpa.states.convolution import Convolution
from core_attention.torch_sdpa.states.step import StateMetadata
from core_runtime.layers.states import StateStore


class ShortConv:
    """A `short_conv` layer bound to its cache."""

    def __init__(self, spec: StateSpec, raw: Tensor, params: Mapping[str, Tensor]) -> None:
        self.channels = spec.sizes["channels"]
        self.convolution = Convolution(params["conv.weight"], params.get("conv.bias"))
        self.states = StateStore(raw, (self.convolution.past, self.channels))

    def forward(self, inputs: Tensor, step: StateMetadata, out: Tensor) -> None:
        """Compute out [T, C] of inputs [T, 3 C]."""
        num_tokens = step.view.num_tokens
        inputs = inputs[:num_tokens]
        b, c, x = inputs.float().split(self.channels, dim=1)
        window = self.states.read(step.view)
        y, window = self.convolution(b * x, window, step)
        self.states.write(step.view, window)
        out[:num_tokens].copy_(c * y)
