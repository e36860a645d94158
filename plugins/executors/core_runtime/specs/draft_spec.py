"""The shape of a draft model or of draft heads, as a proposer describes them. Torch-free.

Owns: `DraftSpec` and its parts. Never does: read configurations (the proposers' plugins do), hold weights or compute.
Called by: the memory plan, the weight loading and the draft pass of the executor.

A draft guesses one token after the other. In each pass its decoder sees, for every token, that token's embedding and,
unless the draft is a model of its own, a hidden state of the tokens before it. At the position of token i this is
the hidden state from which token i was sampled, so that the contents of a cache block depend on nothing after it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_input import DraftInput
from core_runtime.specs.module_spec import ModelSpec

__all__ = ["BEHIND_NORM", "DraftInput", "DraftSpec", "draft_decoder"]

BEHIND_NORM = -1
"""Tap after the target's last norm: the hidden state that its head sees."""


class DraftSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The draft that the core runs for a proposer.

    decoder: blocks with a KV cache, or None if the plugin's own heads compute (`DraftHeads`).
    input: input of the first block.
    taps: hidden states of the target that it reads: the residual stream after each of these blocks, or `BEHIND_NORM`.
        Several are concatenated and projected to the draft's hidden size by a matrix [H, taps x H of the target].
    tap_projection: whether that matrix exists; with several taps it always does.
    carries: hidden state for the next pass: the residual stream as it leaves the last block, or normed.
    shares_embedding, shares_head: whether the target's embedding and head are used.
    head_norm: whether there is a norm before the head.
    draft_vocab_size: tokens that the head knows; None: all of the target's.
    parallel_token_id: token that stands for unknown ones, if one pass computes all drafts; None: they come one by one.
    names: published names of tensors, as patterns with `*`, and their canonical names in the decoder
        (`model.layers.N...`), in the input (`input.joined`, `input.embed_norm`, `input.hidden_norm`, `mask_hidden`), before
        it (`taps`, `tap_norm.N`), and after it (`model.norm`, `lm_head`, and `draft_tokens`: the difference between the id of
        each row of a smaller head and its index). An empty name: the tensor is not read. Tensors without a pattern are
        named as in a model of that configuration; in the target's own checkpoint, they are the target's.

    num_drafts: drafts of a step unless the user sets a number; 0: the user must.

    Layers with a state cannot draft yet: rejected tokens would remain in it.
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
    """Return the decoder of a draft as it is planned and loaded: with its input, and without the target's parts.

    A draft that is a model of its own is returned unchanged. Raises ValueError if the draft has no decoder.
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
