"""The shape of a decoder as data: its blocks, and what its parts have in common. Torch-free.

Owns: `DecoderShape`, the fields of a `DecoderSpec` and the look-ups of one block in them. Never does: name a tensor
(`block_parts` does), divide itself among ranks (`local_spec` does). Called by: both of these, and `DecoderSpec`.
"""

from __future__ import annotations

import msgspec

from core.api.specs import MixerSpec
from core_runtime.specs.block_spec import BlockOrder, BlockSpec, HeadsSpec, MLPSpec, NormSpec, PositionsSpec
from core_runtime.specs.draft_input import DraftInput
from core_runtime.specs.pooling_head import PoolingHead


class DecoderShape(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of one decoder, or of the part of one that a rank holds.

    norm: of every norm but those of queries and keys.
    heads: around attention, in blocks that do not say otherwise.
    mlp: the MLP of blocks that do not say otherwise.
    order: where norms stand around mixer and MLP. `pre`: in front of each. `sandwich`: in front and behind. `post`: behind
        each, before its output joins the residual stream. `residual_post`: of the residual stream, behind each addition.
        `parallel`: one in front of both, which run side by side; `parallel_two`: one in front of each, side by side.
    embed_scale: multiplies embeddings.
    residual_scale: multiplies what mixer and MLP add to the residual stream.
    logit_scale: multiplies logits, before their soft cap.
    logit_cap: the soft cap of the final logits, or None.
    head_bias: whether the output head has a bias, be it tied or not.
    embed_size: numbers of an embedding that is projected to `hidden_size` (and back in front
        of the head); None: they are equal.
    embed_norm: whether embeddings are normalized.
    positions: learned ones, or None.
    token_types: rows of an embedding of segments; that of its segment, usually 0, is added to every token; 0 without one.
    final_norm: whether there is a norm in front of the head.
    causal_lm: whether the model has an output head; False for an encoder, whose result is the last hidden state.
    vocab_start: the first token of the `vocab_size` ones whose rows of embedding and head are held.
    first_block: the number of `blocks[0]` in the whole model.
    holds_embedding: whether this part begins with the embedding.
    holds_head: whether this part ends with the final norm and the head.
    taps: blocks (or `BEHIND_NORM`) behind which the residual stream is copied, side by side, for a draft.
    draft_input: of a draft that takes in hidden states of its target, or None.
    head_size: rows of a head that knows fewer tokens than the embedding, which then come with their ids; None: all.
    pooling_head: what makes numbers for classes from hidden states, or None.
    """

    family: str
    hidden_size: int
    vocab_size: int
    blocks: tuple[BlockSpec, ...]
    max_position: int
    tied: bool
    norm: NormSpec = NormSpec()
    heads: HeadsSpec = HeadsSpec()
    mlp: MLPSpec
    order: BlockOrder = "pre"
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None
    head_bias: bool = False
    embed_size: int | None = None
    embed_norm: bool = False
    positions: PositionsSpec | None = None
    token_types: int = 0
    final_norm: bool = True
    causal_lm: bool = True
    vocab_start: int = 0
    first_block: int = 0
    holds_embedding: bool = True
    holds_head: bool = True
    taps: tuple[int, ...] = ()
    draft_input: DraftInput | None = None
    head_size: int | None = None
    pooling_head: PoolingHead | None = None

    @property
    def mixers(self) -> tuple[MixerSpec, ...]:
        """Every mixer, block by block: each has a place of its own in the cache, in this order."""
        found: list[MixerSpec] = []
        for block in self.blocks:
            found += block.mixers
        return tuple(found)

    def block_name(self, index: int) -> str:
        """The module of block `index` of this part, in canonical names."""
        return f"model.layers.{self.first_block + index}"

    def block_heads(self, index: int) -> HeadsSpec:
        """Around the attention of a block."""
        return self.blocks[index].heads or self.heads

    def block_mlp(self, index: int) -> MLPSpec | None:
        """The MLP of a block; None where it has experts in place of it, or neither."""
        block = self.blocks[index]
        if block.experts is not None or not block.has_mlp:
            return None
        return block.mlp or self.mlp

    def shared_mlp(self, index: int) -> MLPSpec | None:
        """The expert of a block that every token takes, or None."""
        experts = self.blocks[index].experts
        if experts is None or not experts.shared_intermediate_size:
            return None
        usual = self.blocks[index].mlp or self.mlp
        return msgspec.structs.replace(usual, size=experts.shared_intermediate_size, gated=experts.gated)
