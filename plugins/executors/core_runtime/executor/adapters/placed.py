"""The adapters that the steps of a worker may use.

Owns: the tables of all layers, the row of each placed adapter in them, and what the current step needs to know. Never does: read
an adapter. Called by: the worker (binds models), the executor (places and drops adapters), the forward pass (begins steps).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.api.adapters import AdapterFacts
from core.api.errors import UserError
from core_runtime.contracts import LowRankTable, is_recordable
from core_runtime.contracts.low_rank import PackedLowRank
from core_runtime.layers.adapted import LayerAdapters, StepAdapters
from core_runtime.models.adapters.layers import LayerKey, adapted_linears
from core_runtime.models.decoder import Decoder
from core_runtime.models.fallback.model import ModuleModel
from core_runtime.models.tensors.packing import SEGMENTS


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """An adapter in memory, as the tables hold it.

    layers: changes of each layer.
    gains: whether it multiplies outputs of a layer (DoRA).
    """

    facts: AdapterFacts
    layers: Mapping[LayerKey, PackedLowRank]
    gains: bool = False


class PlacedAdapters:
    """The placed adapters of one worker, for the model that was bound last.

    count: adapters that may be placed at once.
    max_rank: largest rank of a matrix.
    dtype: dtype of the matrices.

    rows: row of each placed adapter in all tables, by digest.
    tables: table of each layer.
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

    def release(self) -> None:
        """Forget all adapters, and the tables, whose memory is the device's."""
        self.rows.clear()
        self.tables.clear()
        self._read.clear()
        self._gaining.clear()

    @property
    def recordable(self) -> bool:
        """Whether a step with adapters can be recorded."""
        return all(is_recordable(table) for table in self.tables.values())

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
        if adapter.gains:
            self._gaining.add(row)
        self.rows[digest] = row

    def drop(self, digest: str) -> None:
        """Forget an adapter that no step uses. Called between steps; does nothing for an unknown one."""
        adapter = self._read.pop(digest, None)
        row = self.rows.pop(digest, None)
        if adapter is None or row is None:
            return
        for key in adapter.layers:
            self.tables[key].clear(row)
        self._gaining.discard(row)

    def are_recordable(self, used: Sequence[int]) -> bool:
        """Whether a step that uses these rows can be recorded."""
        return self._gaining.isdisjoint(used)

    def change_head(self, used: Sequence[int]) -> bool:
        """Whether any of these rows changes the model's head."""
        return False

    def begin(self, used: Sequence[int], rows: Tensor) -> None:
        """Begin a step that uses these rows. rows: int32 [T], row of each token."""
        if not used:
            self._step.begin(None)
            return
        gaining = self._gaining.intersection(used)
        if not gaining:
            self._step.begin(rows)
            return
        self._step.begin(rows, torch.tensor(sorted(gaining), dtype=torch.int32, device=rows.device))
