"""Comparison of the fused rotation and key storage with the separate operations.

Owns: the inputs, and both computations. Never does: judge their difference. Called by: the checks of attention
backends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from core.api.specs import AttentionSpec
from core_kit.oracles.reference import PagedRun, batch_view
from core_runtime.contracts import HeadTurn
from core_runtime.layers.reference import ReferenceKernels

EPS = 1e-6


def turns(spec: AttentionSpec, random: torch.Generator) -> Iterator[tuple[str, HeadTurn]]:
    """Yield rotations with and without norms: of whole heads and of their first parts, with weights shared by all heads
    and per head.
    """
    half = spec.head_size // 2
    angles = torch.rand(64, half, generator=random) * 6
    few = angles[:, : max(half // 2, 1)].contiguous()
    shared = torch.randn(spec.head_size, generator=random)
    queries = torch.randn(spec.num_heads, spec.head_size, generator=random)
    keys = torch.randn(spec.num_kv_heads, spec.head_size, generator=random)
    yield "turned", HeadTurn(angles.cos(), angles.sin())
    yield "normed and turned", HeadTurn(angles.cos(), angles.sin(), shared, shared + 1, EPS)
    yield "normed by head and turned in part", HeadTurn(few.cos(), few.sin(), queries, keys, EPS)


def both_ways(backend: Any, run: PagedRun, turn: HeadTurn) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (label, fused result, separate result) of queries, and of attention over them and the stored keys.

    run: of one conversation, with nothing written to its blocks yet.
    """
    (talk,) = run.conversations
    rows = len(talk.q)
    positions = torch.arange(rows).flip(0)  # differ from the row numbers, which a backend must not use instead
    metadata = backend.build(batch_view([rows], [rows], run.tables, run.block_size))
    apart = _beside(talk.q), _beside(talk.k)
    together = _beside(talk.q), _beside(talk.k)

    q, k = together
    backend.turn_and_write(run.handle, q, k, talk.v, turn, positions, metadata)
    out = torch.full((rows, run.spec.num_heads, talk.v.shape[-1]), torch.nan)
    backend.forward(run.handle, q, metadata, out)

    expected_q, expected_k = apart
    reference = ReferenceKernels()
    if turn.q_weight is not None and turn.k_weight is not None:
        reference.rms_norm_heads(expected_q, turn.q_weight, turn.eps)
        reference.rms_norm_heads(expected_k, turn.k_weight, turn.eps)
    reference.rotary(expected_q, expected_k, turn.cos, turn.sin, positions)
    backend.write(run.handle, expected_k, talk.v, metadata)
    expected = torch.full_like(out, torch.nan)
    backend.forward(run.handle, expected_q, metadata, expected)
    yield "queries", q, expected_q
    yield "attention", out, expected


def _beside(x: Tensor) -> Tensor:
    """Return a copy of x [T, H, D] with gaps between the rows."""
    rows, heads, size = x.shape
    wide = torch.empty(rows, heads + 1, size)
    copy = wide[:, :heads]
    copy.copy_(x)
    return copy
