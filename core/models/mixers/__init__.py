"""The first half of a block: what lets a token see the tokens before it.

Owns: which class serves which spec. Never does: compute. Called by: the weight loading, once a block.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from core.api.specs import StateSpec
from core.layers.kernels import KernelSet
from core.layers.linear import Linear
from core.models.mixers.attention import AttentionMixer
from core.models.mixers.state import StateMixer
from core.models.spec import DecoderSpec

Mixer = AttentionMixer | StateMixer
"""Everything that may be the first half of a block."""


def build_mixer(
    spec: DecoderSpec,
    index: int,
    kernels: KernelSet,
    linears: Mapping[str, Linear],
    norms: Mapping[str, Tensor],
    params: Mapping[str, Tensor],
) -> Mixer:
    """The mixer of block `index` from its prepared linears, norms and other tensors, by role (see `DecoderSpec`)."""
    mixer = spec.blocks[index].mixer
    if isinstance(mixer, StateSpec):
        return StateMixer(mixer, linears, params)
    return AttentionMixer(mixer, spec.eps, kernels, linears, norms)
