"""A part of a model: what one of several ranks holds. Torch-free.

Owns: how heads, inner sizes, experts, vocabulary and blocks are divided. Never does: cut a weight (the loading does),
add partial sums (the decoder's `reduce` does). Called by: `DecoderSpec.local`, the loading.

Attention heads, the inner sizes of MLPs and the vocabulary are cut into equal parts, experts into equal ranges of ids.
What is not cut, such as norms, routers and projections to a latent, every rank holds whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from core.api.errors import UserError
from core.api.specs import AttentionSpec, LatentSpec, MixerSpec

if TYPE_CHECKING:
    from core.api.decoder_spec import DecoderSpec, ExpertsSpec


class Part(msgspec.Struct, frozen=True):
    """Which part of a model a rank holds.

    rank: which of the equal parts of each layer, from 0 on.
    size: into how many equal parts each layer is divided.
    blocks: the blocks from the first number to before the second (a pipeline stage); None: all of them.
    """

    rank: int = 0
    size: int = 1
    blocks: tuple[int, int] | None = None

    def slice_of(self, whole: int, mine: int) -> slice:
        """Where `mine` of `whole` equal things lie; ranks share a piece where there are fewer pieces than ranks."""
        num_pieces = whole // mine
        piece = self.rank * num_pieces // self.size
        start = piece * mine
        return slice(start, start + mine)


def local_spec(spec: DecoderSpec, part: Part) -> DecoderSpec:
    """The model that a rank sees. Raises UserError where it cannot be divided so."""
    if not 0 <= part.rank < part.size:
        raise UserError(f"rank {part.rank} of {part.size} parts: expected 0 to {part.size - 1}")
    if part.blocks is not None:
        start, stop = part.blocks
        spec = _stage(spec, start, stop)
    return spec if part.size == 1 else _divided(spec, part)


def _stage(spec: DecoderSpec, start: int, stop: int) -> DecoderSpec:
    """Some blocks; the embedding goes with the first one of all, the head with the last."""
    count = len(spec.blocks)
    if not 0 <= start < stop <= count:
        raise UserError(f"blocks {start} to {stop}: expected a range within the model's {count} blocks")
    return msgspec.structs.replace(
        spec,
        blocks=spec.blocks[start:stop],
        first_block=spec.first_block + start,
        holds_embedding=spec.holds_embedding and start == 0,
        holds_head=spec.holds_head and stop == count,
    )


def _divided(spec: DecoderSpec, part: Part) -> DecoderSpec:
    """The rank's part of each layer."""
    blocks = []
    for block in spec.blocks:
        mixer = _mixer(block.mixer, part.size)
        experts = None if block.experts is None else _experts(block.experts, part)
        blocks.append(msgspec.structs.replace(block, mixer=mixer, experts=experts))
    inner = spec.intermediate_size
    if any(block.experts is None for block in spec.blocks):
        inner = _share(inner, part.size, "inner numbers of an MLP (intermediate_size)")
    vocab_size = _share(spec.vocab_size, part.size, "tokens of the vocabulary (vocab_size)")
    return msgspec.structs.replace(
        spec,
        blocks=tuple(blocks),
        intermediate_size=inner,
        vocab_size=vocab_size,
        vocab_start=part.rank * vocab_size,
    )


def _mixer(mixer: MixerSpec, size: int) -> MixerSpec:
    """A rank's heads; heads of keys and values are held by several ranks where there are more ranks than heads."""
    if isinstance(mixer, LatentSpec):
        heads = _share(mixer.num_heads, size, "attention heads")
        return msgspec.structs.replace(mixer, num_heads=heads)
    if not isinstance(mixer, AttentionSpec):
        raise UserError(f"a layer with a state ({mixer.op}) cannot be divided into {size} parts; use one part")
    if mixer.alibi or mixer.sinks:
        raise UserError(
            f"attention with slopes or sinks of each head cannot be divided into {size} parts; use one part"
        )
    heads = _share(mixer.num_heads, size, "attention heads")
    kv_heads = mixer.num_kv_heads
    shared = kv_heads < size and size % kv_heads == 0
    kv_share = 1 if shared else _share(kv_heads, size, "key and value heads")
    return msgspec.structs.replace(mixer, num_heads=heads, num_kv_heads=kv_share)


def _experts(experts: ExpertsSpec, part: Part) -> ExpertsSpec:
    """A range of ids, and the rank's part of the shared expert."""
    count = _share(experts.count, part.size, "experts")
    shared = _share(experts.shared_intermediate_size, part.size, "inner numbers of the shared expert")
    first = part.rank * count
    return msgspec.structs.replace(experts, held=(first, first + count), shared_intermediate_size=shared)


def _share(whole: int, size: int, what: str) -> int:
    """One of `size` equal shares. Raises UserError where `size` does not divide the whole."""
    if whole % size:
        raise UserError(
            f"{whole} {what} cannot be divided into {size} equal parts; use a number of parts that divides it"
        )
    return whole // size
