"""Layers with a recurrent state in plain torch: the reference that every other backend is tested against. One op per
file.

A prompt is computed token by token, exactly as in decoding, and by functions whose bits depend only on their operands.
A row's bits therefore depend neither on the chunking of a prompt nor on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from torch import Tensor

from core.api.specs import StateSpec
from core_attention.torch_sdpa.states.cross_attention import CrossAttention
from core_attention.torch_sdpa.states.gated_delta import GatedDelta
from core_attention.torch_sdpa.states.kda import Kda
from core_attention.torch_sdpa.states.lightning import Lightning
from core_attention.torch_sdpa.states.mamba1 import Mamba1
from core_attention.torch_sdpa.states.mamba2 import Mamba2
from core_attention.torch_sdpa.states.short_conv import ShortConv
from core_attention.torch_sdpa.states.step import StateMetadata
from core_attention.torch_sdpa.states.stored import StoredStates


class StateLayer(Protocol):
    """A layer with a state, bound to its cache."""

    def forward(self, inputs: Tensor, step: StateMetadata, out: Tensor) -> None:
        """Compute out [T, W'] of inputs [T, W] and advance the states. Rows beyond the step's own are not touched."""
        ...


OPS: Final[Mapping[str, Callable[[StateSpec, StoredStates, Mapping[str, Tensor]], StateLayer]]] = {
    "short_conv": ShortConv,
    "mamba1": Mamba1,
    "mamba2": Mamba2,
    "gated_delta": GatedDelta,
    "kda": Kda,
    "lightning": Lightning,
    "cross_attention": CrossAttention,
}
"""Constructors by op; each takes the spec, the layer's states and the op's own tensors."""
