"""The shape of a draft model or of draft heads, as a proposer describes them. Torch-free.

Owns: `DraftSpec` and its parts. Never does: read configurations (the proposers' plugins do), hold weights or compute.
Called by: the memory plan, the weight loading and the draft pass of the executor.

A draft guesses one token after the other. In each pass its decoder sees, for every token, that token's embedding and,
unless the draft is a model of its own, a hidden state that tells what came before it. At the position of token i this is
the hidden state from which token i was sampled, so that what the cache holds of a block depends on nothing behind it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_input import DraftInput
from core_runtime.specs.module_spec import ModelSpec

__all__ = ["BEHIND_NORM", "DraftInput", "DraftSpec", "draft_decoder"]

BEHIND_NORM = -1
"""A tap behind the target's last norm: the hidden state that its head sees."""


class DraftSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the core runs for a proposer.

    decoder: the blocks with a KV cache, or None where the plugin's own heads compute (`DraftHeads`).
    input: of its first block.
    taps: what it reads of the target: the residual stream behind each of these blocks, or `BEHIND_NORM`. Several are put side
        by side and projected to the draft's hidden size by a matrix [H, taps x H of the target].
    tap_projection: whether there is that matrix; with several taps there always is.
    carries: what the next pass takes as hidden state: the residual stream as it leaves the last block, or normed.
    shares_embedding, shares_head: whether the target's own are used.
    head_norm: whether there is a norm in front of the head.
    draft_vocab_size: tokens that the head knows; None: all of the target's.
    parallel_token_id: the token that stands for those not known yet, where all drafts come from one pass; None: one by one.
    names: published names of tensors, as patterns with `*`, and the canonical names that they have in the decoder
        (`model.layers.N...`), in the input (`input.joined`, `input.embed_norm`, `input.hidden_norm`, `mask_hidden`), in front
        of it (`taps`, `tap_norm.N`), and behind it (`model.norm`, `lm_head`, and `draft_tokens`: how far the id of each row
        of a smaller head lies behind its number). An empty name: the tensor is not read. What has no pattern is named as in
        a model of that configuration; in the target's own checkpoint, it is the target's.

    num_drafts: drafts of a step where nobody says how many; 0: somebody must.

    Layers with a state cannot draft yet: what they hold of rejected tokens would stay.
    """

    decoder: DecoderSpec | None = None
    input: DraftInput = DraftInput()
    taps: tuple[int, ...] = ()
    tap_projection: bool = False
    carries: Literal["residual", "normed"] = "residual"
    shares_embedding: bool = False
    shares_head: bool = False
    head_norm: bool = True
    draft_vocab_size: int | None = None
    parallel_token_id: int | None = None
    names: tuple[tuple[str, str], ...] = ()
    num_drafts: int = 0


def draft_decoder(draft: DraftSpec, target: ModelSpec) -> DecoderSpec:
    """The decoder of a draft as it is planned and loaded: with its input, and without what is the target's.

    A draft that is a model of its own stays what it is. Raises ValueError where the draft has no decoder.
    """
    spec = draft.decoder
    if spec is None:
        raise ValueError("a draft of heads alone has no decoder")
    if not draft.names or not isinstance(target, DecoderSpec):
        return spec
    taken = draft.input
    if draft.tap_projection or len(draft.taps) > 1:
        size = len(draft.taps) * target.hidden_size
        taken = msgspec.structs.replace(taken, tap_size=size)
    exit_of = target if draft.shares_head else spec
    blocks = spec.blocks
    if taken.kind == "paired":
        first = msgspec.structs.replace(blocks[0], wide=True, input_norm=False)
        blocks = (first, *blocks[1:])
    return msgspec.structs.replace(
        spec,
        blocks=blocks,
        draft_input=taken if taken.takes_hidden else None,
        holds_embedding=not draft.shares_embedding,
        tied=spec.tied and not draft.shares_head,
        causal_lm=not draft.shares_head,
        logit_scale=exit_of.logit_scale,
        logit_cap=exit_of.logit_cap,
        final_norm=draft.head_norm,
        head_size=draft.draft_vocab_size,
    )
