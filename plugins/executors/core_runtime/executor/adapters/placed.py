"""The adapters that the steps of a worker may use.

Owns: the tables of all layers, the row of each placed adapter in them, and what the current step needs to know.
Never does: read an adapter. Called by: the worker (binds models), the executor (places and drops adapters), the forward
pass (begins steps).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from core.api.adapters import AdapterFacts
from core.api.errors import UserError
from core_runtime.contracts import LowRankTable, is_recordable
from core_runtime.contracts.low_rank import PackedLowRank
from core_runtime.layers.adapted import LayerAdapters, StepAdapters
from core_runtime.layers.adapted_tokens import EmbeddingAdapters, EmbeddingChange, HeadAdapters, HeadChange
from core_runtime.models.adapters.layers import LayerKey, adapted_linears
from core_runtime.models.decoder import Decoder
from core_runtime.models.fallback.model import ModuleModel
from core_runtime.models.tensors.packing import SEGMENTS
from core_runtime.models.vector_head import VectorHead

HEAD_KEY: Final = LayerKey(-1, "head")
"""Key of the output head's table, which is no layer of a block."""


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """An adapter in memory, as the tables hold it.

    layers: changes of each layer.
    gains: whether it multiplies outputs of a layer (DoRA).
    embedding: change of the embedding, or None.
    head: change of the output head, or None. packed_head: its low-rank change, or None.
    classes: head for classes that replaces the model's, or None.
    """

    facts: AdapterFacts
    layers: Mapping[LayerKey, PackedLowRank]
    gains: bool = False
    embedding: EmbeddingChange | None = None
    head: HeadChange | None = None
    packed_head: PackedLowRank | None = None
    classes: VectorHead | None = None


class PlacedAdapters:
    """The placed adapters of one worker, for the model that was bound last.

    count: adapters that may be placed at once.
    max_rank: largest rank of a matrix.
    dtype: dtype of the matrices.

    rows: row of each placed adapter in all tables, by digest.
    tables: table of each layer, and of the output head.
    classes: heads for classes that replace the model's, by row.
    """

    def __init__(self, count: int, max_rank: int, dtype: torch.dtype) -> None:
        self._count = count
        self._max_rank = max_rank
        self.dtype = dtype
        self.rows: dict[str, int] = {}
        self.tables: dict[LayerKey, LowRankTable] = {}
        self._read: dict[str, ReadAdapter] = {}
        self._step = StepAdapters()
        self._gaining: set[int] = set()
        self._embeddings: dict[int, EmbeddingChange] = {}
        self._heads: dict[int, HeadChange] = {}
        self._changing_head: set[int] = set()
        self.classes: dict[int, VectorHead] = {}

    def bind(self, model: Decoder | ModuleModel) -> None:
        """Let the layers of a model use the tables. A later model must have the same shape. Raises UserError."""
        if not isinstance(model, Decoder):
            raise UserError("--enable-lora: the layers of transformers take no adapters; leave it out.")
        for key, linear in adapted_linears(model.weights):
            table = self.tables.get(key)
            if table is None:
                shape = linear.out_features, linear.in_features
                num_parts = len(model.spec.block_linears(key.block)[key.role])
                table = model.kernels.low_rank(
                    shape, self._count, self.dtype, max_rank=num_parts * self._max_rank, segments=SEGMENTS
                )
                self.tables[key] = table
            linear.adapters = LayerAdapters(self._step, table)
        if model.embedding is not None:
            model.embedding.adapters = EmbeddingAdapters(self._step, self._embeddings)
        head = model.weights.head
        if model.head is not None and head is not None and head.tokens is not None:
            if HEAD_KEY not in self.tables:
                self.tables[HEAD_KEY] = model.kernels.low_rank(
                    head.tokens.shape, self._count, self.dtype, max_rank=self._max_rank
                )
            model.head.adapters = HeadAdapters(self._step, self.tables[HEAD_KEY], self._heads)

    def release(self) -> None:
        """Forget all adapters, and the tables, whose memory is the device's."""
        for kept in (self.rows, self.tables, self._read, self._embeddings, self._heads, self.classes):
            kept.clear()
        self._gaining.clear()
        self._changing_head.clear()

    @property
    def recordable(self) -> bool:
        """Whether a step with adapters can be recorded."""
        return all(is_recordable(table) for key, table in self.tables.items() if key != HEAD_KEY)

    def find(self, digest: str) -> ReadAdapter | None:
        """Return an adapter that was read, None if there is none of this digest."""
        return self._read.get(digest)

    def keep(self, adapter: ReadAdapter) -> None:
        """Keep an adapter that was read; called in another thread than that of the steps."""
        self._read[adapter.facts.digest] = adapter

    def place(self, digest: str) -> None:
        """Give an adapter a row. Called between steps. Raises UserError for one that was not read, or without a free row."""
        if digest in self.rows:
            return
        adapter = self._read.get(digest)
        if adapter is None:
            raise UserError(f"The adapter {digest:.12} was not read; read it first.")
        free = set(range(self._count)).difference(self.rows.values())
        if not free:
            raise UserError(f"All {self._count} places of adapters are taken; unload one, or set --max-cpu-loras.")
        row = min(free)
        for key, packed in adapter.layers.items():
            self.tables[key].set(row, packed)
        if adapter.packed_head is not None:
            self.tables[HEAD_KEY].set(row, adapter.packed_head)
        if adapter.gains:
            self._gaining.add(row)
        if adapter.embedding is not None:
            self._embeddings[row] = adapter.embedding
        if adapter.head is not None:
            self._heads[row] = adapter.head
        if adapter.head is not None or adapter.packed_head is not None:
            self._changing_head.add(row)
        if adapter.classes is not None:
            self.classes[row] = adapter.classes
        self.rows[digest] = row

    def drop(self, digest: str) -> None:
        """Forget an adapter that no step uses. Called between steps; does nothing for an unknown one."""
        adapter = self._read.pop(digest, None)
        row = self.rows.pop(digest, None)
        if adapter is None or row is None:
            return
        for key in adapter.layers:
            self.tables[key].clear(row)
        if adapter.packed_head is not None:
            self.tables[HEAD_KEY].clear(row)
        for rows in (self._gaining, self._changing_head):
            rows.discard(row)
        for changes in (self._embeddings, self._heads, self.classes):
            changes.pop(row, None)

    def are_recordable(self, used: Sequence[int]) -> bool:
        """Whether a step that uses these rows can be recorded."""
        return self._gaining.isdisjoint(used) and self._embeddings.keys().isdisjoint(used)

    def change_head(self, used: Sequence[int]) -> bool:
        """Whether any of these rows changes the model's head."""
        return not self._changing_head.isdisjoint(used)

    def begin(self, used: Sequence[int], rows: Tensor) -> None:
        """Begin a step that uses these rows. rows: int32 [T], row of each token."""
        if not used:
            self._step.begin(None)
            return
        gaining = None
        found = self._gaining.intersection(used)
        if found:
            gaining = torch.tensor(sorted(found), dtype=torch.int32, device=rows.device)
        self._step.begin(rows, gaining, changes_head=self.change_head(used))
