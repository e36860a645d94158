"""The first half of a block: what lets a token see the tokens before it.

Owns: which class serves which spec. Never does: compute. Called by: the weight loading, once a block.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from core.api.decoder_spec import DecoderSpec
from core.api.specs import LatentSpec, StateSpec
from core.layers.kernels import KernelSet
from core.layers.linear import Linear
from core.models.mixers.attention import AttentionMixer
from core.models.mixers.latent import LatentMixer
from core.models.mixers.state import StateMixer
from core.plugin.contracts import HeadsKernel

Mixer = AttentionMixer | LatentMixer | StateMixer
"""Everything that may be the first half of a block."""


def build_mixer(
    spec: DecoderSpec,
    index: int,
    kernels: KernelSet,
    linears: Mapping[str, Linear],
    heads: tuple[HeadsKernel, HeadsKernel] | None,
    norms: Mapping[str, Tensor],
    params: Mapping[str, Tensor],
) -> Mixer:
    """The mixer of block `index` from its prepared linears, norms and other tensors, by role (see `MixerParts`).

    heads: both halves of the absorbed matrix where it has one.
    """
    mixer = spec.blocks[index].mixer
    if isinstance(mixer, StateSpec):
        return StateMixer(mixer, linears, params)
    if isinstance(mixer, LatentSpec):
        assert heads is not None
        return LatentMixer(mixer, kernels, linears, heads, norms)
    return AttentionMixer(mixer, spec.eps, kernels, linears, norms)
