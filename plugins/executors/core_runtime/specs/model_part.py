"""The part of a model that one of several ranks holds. Torch-free.

Owns: how heads, inner sizes, experts, vocabulary and blocks are divided. Never does: cut a weight (the loading does),
add partial sums (the decoder's `reduce` does). Called by: `DecoderSpec.local`, the loading.

Attention heads, the inner sizes of MLPs and the vocabulary are cut into equal parts, experts into equal ranges of ids.
Every rank holds all other parts, such as norms, routers and projections to a latent, as a whole.
"""

from __future__ import annotations

import msgspec

from core.api.errors import UserError
from core.api.specs import AttentionSpec, LatentSpec, MixerSpec


class Part(msgspec.Struct, frozen=True):
    """The part of a model that a rank holds.

    rank: index of the rank's part of each layer, from 0 on.
    size: number of equal parts of each layer.
    blocks: range [first, second) of blocks (a pipeline stage); None: all of them.
    """

    rank: int = 0
    size: int = 1
    blocks: tuple[int, int] | None = None

    def slice_of(self, whole: int, mine: int) -> slice:
        """Return the rank's slice of `whole` items, `mine` long; with fewer pieces than ranks, several ranks share one."""
        num_pieces = whole // mine
        piece = self.rank * num_pieces // self.size
        start = piece * mine
        return slice(start, start + mine)


def local_mixer(mixer: MixerSpec, size: int) -> MixerSpec:
    """Return a rank's heads; with more ranks than key-value heads, several ranks hold the same ones."""
    if isinstance(mixer, LatentSpec):
        heads = share_of(mixer.num_heads, size, "attention heads")
        return msgspec.structs.replace(mixer, num_heads=heads)
    if not isinstance(mixer, AttentionSpec):
        raise UserError(f"a layer with a state ({mixer.op}) cannot be divided into {size} parts; use one part")
    if mixer.alibi or mixer.sinks:
        raise UserError(
            f"attention with slopes or sinks of each head cannot be divided into {size} parts; use one part"
        )
    heads = share_of(mixer.num_heads, size, "attention heads")
    kv_heads = mixer.num_kv_heads
    shared = kv_heads < size and size % kv_heads == 0
    kv_share = 1 if shared else share_of(kv_heads, size, "key and value heads")
    return msgspec.structs.replace(mixer, num_heads=heads, num_kv_heads=kv_share)


def share_of(whole: int, size: int, what: str) -> int:
    """Return one of `size` equal shares. Raises UserError if `size` does not divide the whole."""
    if whole % size:
        raise UserError(
            f"{whole} {what} cannot be divided into {size} equal parts; use a number of parts that divides it"
        )
    return whole // size
