"""The first half of a block: one mixer, or two side by side, through which a token sees earlier tokens.

Owns: the choice of a class for each spec. Never does: compute. Called by: the weight loading, once a block.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from core.api.specs import LatentSpec, StateSpec
from core_runtime.contracts import HeadsKernel
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.models.mixers.attention import AttentionMixer
from core_runtime.models.mixers.index import Index
from core_runtime.models.mixers.latent import LatentMixer
from core_runtime.models.mixers.state import StateMixer
from core_runtime.models.norm import Norm
from core_runtime.specs.decoder_spec import DecoderSpec

Mixer = AttentionMixer | LatentMixer | StateMixer
"""Types of the first half of a block."""


def build_mixers(
    spec: DecoderSpec,
    index: int,
    kernels: KernelSet,
    linears: Mapping[str, Linear],
    heads: tuple[HeadsKernel, HeadsKernel] | None,
    norms: Mapping[str, Norm],
    params: Mapping[str, Tensor],
) -> tuple[Mixer, ...]:
    """Return the mixers of block `index` from their prepared linears, norms and other tensors, by role (see
    `MixerParts`).

    heads: both halves of the absorbed matrix where the mixer has one.
    """
    found: list[Mixer] = []
    for mixer in spec.blocks[index].mixers:
        if isinstance(mixer, StateSpec):
            found.append(StateMixer(mixer, linears, params))
        elif isinstance(mixer, LatentSpec):
            assert heads is not None
            heads_spec = spec.block_heads(index)
            keys = Index(mixer.index, mixer.rope_size, kernels, linears, norms) if mixer.index is not None else None
            found.append(
                LatentMixer(
                    mixer, kernels, linears, heads, norms, heads_spec.temperature, keys, gated=heads_spec.latent_gate
                )
            )
        else:
            around = spec.block_heads(index)
            found.append(AttentionMixer(mixer, around, kernels, linears, norms, params.get("sinks")))
    return tuple(found)
