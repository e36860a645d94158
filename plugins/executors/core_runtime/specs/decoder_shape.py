"""The shape of a decoder as data: its blocks, and their common options. Torch-free.

Owns: `DecoderShape`, the fields of a `DecoderSpec` and the look-ups of one block in them. Never does: name a tensor
(`block_parts` does), divide itself among ranks (`local_spec` does). Called by: both of these, and `DecoderSpec`.
"""

from __future__ import annotations

import msgspec

from core.api.specs import MixerSpec
from core_runtime.specs.block_spec import BlockOrder, BlockSpec, HeadsSpec, MLPSpec, NormSpec, PositionsSpec
from core_runtime.specs.draft_input import DraftInput
from core_runtime.specs.layer_inputs import LayerInputs
from core_runtime.specs.pooling_head import PoolingHead
from core_runtime.specs.streams import Streams


class DecoderShape(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of one decoder, or of the part of one that a rank holds.

    norm: every norm except those of queries and keys.
    heads: options around attention, for blocks without their own.
    mlp: the MLP, for blocks without their own.
    order: placement of norms around mixer and MLP. `pre`: before each. `sandwich`: before and after. `post`: after
        each, before its output is added to the residual stream. `residual_post`: of the residual stream, after each
        addition. `parallel`: one before both, which run side by side; `parallel_two`: one before each, side by side.
    embed_scale: factor of embeddings.
    residual_scale: factor of the outputs of mixer and MLP that are added to the residual stream.
    logit_scale: factor of logits, before their soft cap.
    logit_cap: soft cap of the final logits, or None.
    head_bias: whether the output head has a bias, tied or not.
    embed_size: size of an embedding that is projected to `hidden_size` (and back before the head); None: they are equal.
    embed_norm: whether embeddings are normalized.
    layer_inputs: embeddings for each block, or None.
    spans_in_windows: whether rows of a request's spans see later ones in layers with a window alone (Gemma 4), not in all.
    streams: several residual streams of which each block computes the first, or None: there is one.
    positions: learned positions, or None.
    token_types: rows of an embedding of segments, which is added to each token by its segment, usually 0; 0: there is none.
    final_norm: whether there is a norm before the head.
    causal_lm: whether the model has an output head; False for an encoder, whose result is the last hidden state.
    vocab_start: first of the `vocab_size` tokens whose rows of embedding and head this part holds.
    first_block: index of `blocks[0]` in the whole model.
    holds_embedding: whether this part begins with the embedding.
    holds_head: whether this part ends with the final norm and the head.
    taps: blocks (or `BEHIND_NORM`) after which the residual stream is copied for a draft, concatenated.
    draft_input: input of a draft that takes hidden states of its target, or None.
    head_size: rows of a head with fewer tokens than the embedding, whose ids are then stored with it; None: all.
    pooling_head: head that computes class scores from hidden states, or None.
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
    layer_inputs: LayerInputs | None = None
    spans_in_windows: bool = False
    streams: Streams | None = None
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
        """All mixers, block by block. Each has a place of its own in the cache, in this order, except those of `lenders`."""
        found: list[MixerSpec] = []
        for block in self.blocks:
            found += block.mixers
        return tuple(found)

    @property
    def lenders(self) -> dict[int, int]:
        """Numbers of the mixers that store nothing, and of the earlier ones whose keys and values they read."""
        found: dict[int, int] = {}
        lent: dict[str, int] = {}
        place = 0
        for index, block in enumerate(self.blocks):
            heads = self.block_heads(index)
            if heads.borrows:
                found[place] = lent[heads.borrows]
            elif heads.lends:
                lent[heads.lends] = place
            place += len(block.mixers)
        return found

    def block_name(self, index: int) -> str:
        """Return the module of block `index` of this part, in canonical names."""
        return f"model.layers.{self.first_block + index}"

    def block_heads(self, index: int) -> HeadsSpec:
        """Return the options around a block's attention."""
        return self.blocks[index].heads or self.heads

    def block_mlp(self, index: int) -> MLPSpec | None:
        """Return the MLP of a block; None if it has experts instead, or neither."""
        block = self.blocks[index]
        if block.experts is not None or not block.has_mlp:
            return None
        return block.mlp or self.mlp

    def shared_mlp(self, index: int) -> MLPSpec | None:
        """Return the MLP of a block's shared expert, which every token uses, or None."""
        experts = self.blocks[index].experts
        if experts is None or not experts.shared_intermediate_size:
            return None
        usual = self.blocks[index].mlp or self.mlp
        return msgspec.structs.replace(usual, size=experts.shared_intermediate_size, gated=experts.gated)
