"""Layers with a state in plain torch: the reference that every other backend is tested against. One op a file.

A prompt is computed token after token, as it is when its tokens come one by one, and by functions whose bits depend on
nothing but their operands: so a row's bits depend neither on where a prompt is cut nor on the company that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from torch import Tensor

from core.api.specs import StateSpec
from core_attention.torch_sdpa.states.gated_delta import GatedDelta
from core_attention.torch_sdpa.states.kda import Kda
from core_attention.torch_sdpa.states.mamba1 import Mamba1
from core_attention.torch_sdpa.states.mamba2 import Mamba2
from core_attention.torch_sdpa.states.short_conv import ShortConv
from core_attention.torch_sdpa.states.step import StateMetadata


class StateLayer(Protocol):
    """One bound layer."""

    def forward(self, inputs: Tensor, step: StateMetadata, out: Tensor) -> None:
        """out [T, W'] of inputs [T, W]; the states move on. Rows behind the step's own are not touched."""
        ...


OPS: Final[Mapping[str, Callable[[StateSpec, Tensor, Mapping[str, Tensor]], StateLayer]]] = {
    "short_conv": ShortConv,
    "mamba1": Mamba1,
    "mamba2": Mamba2,
    "gated_delta": GatedDelta,
    "kda": Kda,
}
"""Made of the spec, the layer's bytes and the op's own tensors."""
