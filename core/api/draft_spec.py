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

from core.api.block_spec import NormSpec
from core.api.decoder_spec import DecoderSpec

BEHIND_NORM = -1
"""A tap behind the target's last norm: the hidden state that its head sees."""


class DraftInput(msgspec.Struct, frozen=True, kw_only=True):
    """How embedding and hidden state enter the first block.

    kind: `tokens`: the embedding alone. `joined`: a matrix [H, 2H] of both, side by side. `paired`: the hidden state is the
        residual stream, and the attention of the first block reads both side by side.
    hidden_first: whether the hidden state is the left half.
    bias: whether the matrix of `joined` has a bias.
    embed_norm: of the embedding in front of that, or None.
    hidden_norm: of the hidden state in front of that, or None.
    """

    kind: Literal["tokens", "joined", "paired"] = "tokens"
    hidden_first: bool = False
    bias: bool = False
    embed_norm: NormSpec | None = None
    hidden_norm: NormSpec | None = None


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
        (`model.layers.N...`), in the input (`input.joined`, `input.embed_norm`, `input.hidden_norm`), in front of it
        (`taps`), and behind it (`model.norm`, `lm_head`, `draft_tokens`). None: they are named as those of a model of that
        configuration.

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
