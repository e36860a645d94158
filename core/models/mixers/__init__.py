"""The first half of a block: what lets a token see the tokens before it.

Owns: which class serves which spec. Never does: compute. Called by: the weight loading, once a block.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from core.layers.kernels import KernelSet
from core.layers.linear import Linear
from core.models.mixers.attention import AttentionMixer
from core.models.spec import DecoderSpec

Mixer = AttentionMixer
"""Everything that may be the first half of a block."""


def build_mixer(
    spec: DecoderSpec, index: int, kernels: KernelSet, linears: Mapping[str, Linear], norms: Mapping[str, Tensor]
) -> Mixer:
    """The mixer of block `index` from its prepared linears and norms, by role (see `DecoderSpec`)."""
    return AttentionMixer(spec.blocks[index].mixer, spec.eps, kernels, linears, norms)
