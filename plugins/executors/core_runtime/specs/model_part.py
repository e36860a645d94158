"""The part of a model that one of several ranks holds. Torch-free.

Owns: how heads, inner sizes, experts, vocabulary and blocks are divided. Never does: cut a weight (the loading does),
add partial sums (the decoder's `reduce` does). Called by: `DecoderSpec.local`, the loading.

Heads of attention and of layers with a state, and the inner sizes of MLPs, are cut into equal parts; every expert lies whole
on a rank (`expert_placement`); of the vocabulary, the last rank may hold fewer tokens. Every rank holds all other parts, such
as norms, routers and projections to a latent, as a whole.
"""

from __future__ import annotations

import msgspec

from core.api.errors import UserError
from core.api.specs import LatentSpec, MixerSpec, StateSpec
from core_runtime.specs.expert_placement import ExpertPlacement
from core_runtime.specs.local_state import local_state
from core_runtime.specs.shares import group_share, share_of


class Part(msgspec.Struct, frozen=True):
    """The part of a model that a rank holds.

    rank: index of the rank's part of each layer, from 0 on.
    size: number of equal parts of each layer.
    blocks: range [first, second) of blocks (a pipeline stage); None: all of them.
    experts: how the ranks share experts.
    """

    rank: int = 0
    size: int = 1
    blocks: tuple[int, int] | None = None
    experts: ExpertPlacement = ExpertPlacement()

    def slice_of(self, whole: int, mine: int) -> slice:
        """Return the rank's slice of `whole` items, `mine` long; with fewer pieces than ranks, several ranks share one."""
        num_pieces = whole // mine
        piece = self.rank * num_pieces // self.size
        start = piece * mine
        return slice(start, start + mine)

    def vocabulary(self, whole: int) -> slice:
        """Return the rank's range of `whole` tokens. Raises UserError where the last rank would hold none."""
        share = -(-whole // self.size)
        if share * (self.size - 1) >= whole:
            raise UserError(f"{whole} tokens of a vocabulary cannot be divided into {self.size} parts; use fewer parts")
        start = self.rank * share
        return slice(start, min(start + share, whole))


def local_mixer(mixer: MixerSpec, size: int) -> MixerSpec:
    """Return a rank's heads; with more ranks than key-value heads, several ranks hold the same ones."""
    if isinstance(mixer, StateSpec):
        return local_state(mixer, size)
    heads = share_of(mixer.num_heads, size, "attention heads")
    if isinstance(mixer, LatentSpec):
        return msgspec.structs.replace(mixer, num_heads=heads)
    kv_heads = group_share(mixer.num_kv_heads, size, "key and value heads")
    return msgspec.structs.replace(mixer, num_heads=heads, num_kv_heads=kv_heads)
