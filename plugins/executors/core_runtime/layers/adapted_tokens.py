"""What the adapters of a step change where tokens become vectors, and vectors become logits.

Owns: the changes of embedding and head, and their order. Never does: read an adapter, or record: steps with such adapters run
call by call. Called by: the embedding and the head of a model with adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from core_runtime.contracts import LinearKernel, LowRankTable
from core_runtime.layers.adapted import StepAdapters


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of an embedding or a head that others replace. ids: int64 [n], ascending. rows: [n, E]."""

    ids: Tensor
    rows: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.rows.nbytes)


@dataclass(frozen=True, slots=True)
class EmbeddingChange:
    """What one adapter changes in the embedding.

    weight: [V, E], replaces the matrix, or None.
    tokens: rows that are replaced, or None.
    a: [V, r] and b: [E, r]: adds scale * b @ a[token] to the row of a token; or None.
    gain: float32 [E], multiplies the changed row (DoRA); None: 1.
    """

    weight: Tensor | None = None
    tokens: TokenRows | None = None
    a: Tensor | None = None
    b: Tensor | None = None
    scale: float = 1.0
    gain: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        parts = (self.weight, self.tokens, self.a, self.b, self.gain)
        return sum(part.nbytes for part in parts if part is not None)

    def apply(self, token_ids: Tensor, out: Tensor) -> None:
        """Change the rows out [n, E] of tokens int64 [n]."""
        if self.weight is not None:
            out.copy_(self.weight[token_ids])
        if self.tokens is not None:
            ids = self.tokens.ids
            places = torch.searchsorted(ids, token_ids).clamp(max=len(ids) - 1)
            found = ids[places] == token_ids
            out.copy_(torch.where(found.unsqueeze(1), self.tokens.rows[places].to(out.dtype), out))
        if self.a is not None and self.b is not None:
            inner = self.scale * self.a[token_ids].float()
            # One rank after the other: the order of a library's sums may depend on the number of rows.
            for rank in range(inner.shape[1]):
                out += inner[:, rank : rank + 1] * self.b[:, rank].float()
        if self.gain is not None:
            out *= self.gain


class EmbeddingAdapters:
    """The adapters of the embedding.

    step: the adapters of the current step.
    changes: by row of the tables; only adapters that change the embedding.
    """

    def __init__(self, step: StepAdapters, changes: Mapping[int, EmbeddingChange]) -> None:
        self._step = step
        self._changes = changes

    def run(self, token_ids: Tensor, out: Tensor) -> None:
        """Change the rows out [T, E] of the step's tokens."""
        rows = self._step.rows
        if rows is None:
            return
        for row, change in self._changes.items():
            places = (rows == row).nonzero().squeeze(1)
            if len(places):
                found = out[places]
                change.apply(token_ids[places], found)
                out[places] = found


@dataclass(frozen=True, slots=True)
class HeadChange:
    """What one adapter changes in the head, besides the low-rank change in its table.

    weight: replaces the matrix, or None.
    tokens: rows of the matrix that are replaced, or None. A rank has those of other ranks, too, so that their products are
        the same library call on each.
    start: first token of which this rank has a logit.
    """

    weight: LinearKernel | None = None
    tokens: TokenRows | None = None
    start: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        parts = (self.weight, self.tokens)
        return sum(part.nbytes for part in parts if part is not None)

    def apply(self, x: Tensor, out: Tensor) -> None:
        """Change the logits out [n, V] of x [n, E]."""
        if self.weight is not None:
            self.weight(x, out)
        if self.tokens is not None:
            wide = self.tokens.rows.float()
            places = self.tokens.ids - self.start
            mine = (places >= 0) & (places < out.shape[1])
            for index, row in enumerate(x.float()):
                # Row by row, for the same reason as above.
                out[index, places[mine]] = (wide @ row.clone())[mine].to(out.dtype)


class HeadAdapters:
    """The adapters of the head.

    step: the adapters of the current step.
    table: low-rank changes of the resident adapters.
    changes: other changes, by row of the tables.
    """

    def __init__(self, step: StepAdapters, table: LowRankTable, changes: Mapping[int, HeadChange]) -> None:
        self._step = step
        self._table = table
        self._changes = changes

    @property
    def active(self) -> bool:
        """Whether the adapters of the current step change the head."""
        return self._step.rows is not None and self._step.changes_head

    def run(self, own: LinearKernel, x: Tensor, places: Tensor, out: Tensor) -> None:
        """Compute the logits out [R, V] of x [R, E], which belong to the tokens `places` (int64 [R]) of the step."""
        assert self._step.rows is not None, "a step without adapters runs the head alone"
        rows = self._step.rows.index_select(0, places)
        own(x, out)
        for row, change in self._changes.items():
            chosen = (rows == row).nonzero().squeeze(1)
            if len(chosen):
                found = out[chosen]
                change.apply(x[chosen], found)
                out[chosen] = found
        self._table(x, rows, out)
