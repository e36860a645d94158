"""Weights that a draft shares with its target.

Owns: which kernels both use. Never does: read or prepare a weight. Called by: the draft's instance, once.
"""

from __future__ import annotations

import dataclasses

import msgspec

from core_runtime.contracts import LinearKernel
from core_runtime.models.decoder_weights import DecoderWeights
from core_runtime.models.head import HeadWeights
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_spec import DraftSpec


def borrow(weights: DecoderWeights, target: DecoderWeights, draft: DraftSpec) -> DecoderWeights:
    """Return the weights of a draft with the kernels that it shares with its target. The target must hold its whole
    vocabulary.
    """
    borrowed: list[LinearKernel | None] = []
    embedding = weights.embedding
    head = weights.head
    if draft.shares_embedding and target.embedding is not None:
        embedding = target.embedding
        borrowed += [embedding.tokens, embedding.project]
    if draft.shares_head and target.head is not None:
        norm = None if head is None else head.norm
        head = HeadWeights(norm, target.head.project, target.head.tokens, target.head.bias)
        borrowed += [head.project, head.tokens]
    kernels = tuple(kernel for kernel in borrowed if kernel is not None)
    return dataclasses.replace(weights, embedding=embedding, head=head, borrowed=kernels)


def borrowing_spec(spec: DecoderSpec, target: DecoderSpec, draft: DraftSpec) -> DecoderSpec:
    """Return the shape of a draft that runs with borrowed weights. spec: shape from `draft_decoder`."""
    if draft.shares_embedding:
        spec = msgspec.structs.replace(spec, holds_embedding=True, embed_size=target.embed_size)
    if draft.shares_head:
        spec = msgspec.structs.replace(spec, causal_lm=True, vocab_size=target.vocab_size)
    return spec
