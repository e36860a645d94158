"""The input layer of a decoder: from tokens and positions to the residual stream.

Owns: the order of its operations, and the segments of a step. Never does: allocate during a step.
Called by: the decoder, once a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from core_runtime.contracts import LinearKernel, RowsOfPart
from core_runtime.layers.adapted_tokens import EmbeddingAdapters
from core_runtime.layers.kernels import KernelSet
from core_runtime.models.norm import Norm
from core_runtime.specs.block_spec import PositionsSpec
from core_runtime.specs.decoder_spec import DecoderSpec


@dataclass(slots=True)
class EmbeddingWeights:
    """The prepared weights of an embedding.

    tokens: the matrix, one row a token.
    project: projection from the embeddings' size to the hidden size, or None.
    positions: [positions, H] in the dtype of activations; row p is added at position p. Or None.
    segments: [segments, H]; the row of its segment is added to every token. Or None.
    norm: the norm that follows everything else, or None.
    """

    tokens: LinearKernel
    project: LinearKernel | None = None
    positions: Tensor | None = None
    segments: Tensor | None = None
    norm: Norm | None = None


def lengthened(table: Tensor, count: int) -> Tensor:
    """Return a table of positions with at least `count` rows.

    The last row is repeated for drafts after the longest context, whose tokens no client receives.
    """
    missing = count - len(table)
    return table if missing <= 0 else torch.cat([table, table[-1:].expand(missing, -1)])


def sinusoids(spec: PositionsSpec, size: int) -> Tensor:
    """Return the computed table of positions, float32 [rows, size], see `PositionsSpec`. For an odd size the last
    column is 0.
    """
    half = size // 2
    steps = torch.arange(half, dtype=torch.float32) / max(half - 1, 1)
    frequencies = torch.exp(-math.log(10000) * steps)
    rows = torch.arange(spec.count + spec.offset, dtype=torch.float32)
    angles = rows.unsqueeze(1) * frequencies
    table = torch.zeros(len(rows), size)
    table[:, :half] = angles.sin()
    table[:, half : 2 * half] = angles.cos()
    return table


class Embedding:
    """The embedding of a model, or of the part of its vocabulary that a rank holds.

    max_tokens: limit of tokens in one step.
    reduce: sums the parts of all ranks, in place; None: this is the whole vocabulary.
    adapters: adapters of the matrix; None: the engine has none.
    whole: tokens of the whole vocabulary, of which this is a part; 0: this is all of it.
    given: rows of the next step, int64 [R], and the embeddings [R, H] that replace those of their tokens; None: no
        replacement. They have the form of the residual stream: those of media are neither scaled nor projected, and models
        that scale or project the rows of their matrix take no prompts of embeddings.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: EmbeddingWeights,
        kernels: KernelSet,
        max_tokens: int,
        reduce: Callable[[Tensor], None] | None,
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._kernels = kernels
        self._reduce = reduce
        self.adapters: EmbeddingAdapters | None = None
        self.whole = 0
        self.given: tuple[Tensor, Tensor] | None = None
        self._segments: Tensor | None = None
        if weights.segments is not None:
            self._segments = torch.zeros(max_tokens, dtype=torch.int64, device=weights.segments.device)

    def set_segments(self, segments: Tensor | None) -> None:
        """Set the segment of each token of the next steps, int64 [T]; None: all tokens are in the first segment."""
        if self._segments is None:
            return
        if segments is None:
            self._segments.zero_()
        else:
            self._segments[: len(segments)] = segments

    @property
    def linears(self) -> list[LinearKernel]:
        """Return all kernels that a runtime must be able to record."""
        project = self._weights.project
        return [self._weights.tokens] if project is None else [self._weights.tokens, project]

    @property
    def is_plain(self) -> bool:
        """Whether the embedding consists of kernels alone, apart from the sum over ranks."""
        return self._reduce is None or (bool(self.whole) and isinstance(self._weights.tokens, RowsOfPart))

    def __call__(self, token_ids: Tensor, positions: Tensor, embedded: Tensor, added: Tensor, out: Tensor) -> None:
        """Write the residual stream to out [T, H], from token_ids and positions, int64 [T].

        embedded: [T, E], scratch for the embeddings where E differs from H.
        added: [T, H], scratch for the rows that are added.
        """
        weights = self._weights
        rows = out if weights.project is None else embedded
        self._tokens(token_ids, rows)
        if self.adapters is not None:
            self.adapters.run(token_ids, rows)
        if weights.project is not None:
            weights.project(embedded, out)
        if self._spec.embed_scale != 1.0:
            self._kernels.scale(out, self._spec.embed_scale)
        if self.given is not None:
            rows, values = self.given
            out[rows] = values.to(out.dtype)
        if weights.positions is not None:
            self._add(weights.positions, positions, added, out)
        if weights.segments is not None and self._segments is not None:
            self._add(weights.segments, self._segments[: len(token_ids)], added, out)
        if weights.norm is not None:
            weights.norm(out, out)

    def _add(self, table: Tensor, rows: Tensor, added: Tensor, out: Tensor) -> None:
        """Add table[rows] to out, with `added` as scratch."""
        self._kernels.take_rows(table, rows, added)
        self._kernels.add(added, out)

    def _tokens(self, token_ids: Tensor, out: Tensor) -> None:
        """Write the rows of the tokens to `out`. A rank writes zeros for rows that other ranks hold, so that the sum
        has all of them.
        """
        if self._reduce is None:
            self._weights.tokens.rows(token_ids, out)
            return
        tokens = self._weights.tokens
        if self.whole and isinstance(tokens, RowsOfPart):
            tokens.rows_of_part(token_ids, self._spec.vocab_start, self.whole, out)
            self._reduce(out)
            return
        local = token_ids - self._spec.vocab_start
        foreign = (local < 0) | (local >= self._spec.vocab_size)
        tokens.rows(local.masked_fill(foreign, 0), out)
        out.masked_fill_(foreign.unsqueeze(1), 0.0)
        self._reduce(out)
