"""The adapters that the steps of a worker may use.

Owns: the tables of all layers, the row of each placed adapter in them, and what the current step needs to know.
Never does: read an adapter. Called by: the worker (binds models), the executor (places and drops adapters), the forward
pass (begins steps).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from core.api.adapters import AdapterFacts
from core.api.errors import UserError
from core_runtime.contracts import LowRankTable, is_recordable
from core_runtime.contracts.low_rank import PackedLowRank
from core_runtime.executor.adapters.norms import norms_of
from core_runtime.layers.adapted import LayerAdapters, StepAdapters
from core_runtime.layers.adapted_experts import AdaptedExperts, ExpertsAdapters
from core_runtime.layers.adapted_heads import AbsorbedAdapters
from core_runtime.layers.adapted_norms import NormAdapters, NormChange
from core_runtime.layers.adapted_states import StateAdapters
from core_runtime.layers.adapted_tokens import EmbeddingAdapters, EmbeddingChange, HeadAdapters, HeadChange
from core_runtime.layers.divided_adapters import DividedTable
from core_runtime.layers.experts import COMBINE_RANGES
from core_runtime.layers.linear import Linear
from core_runtime.layers.partial_sums import SummedLinear
from core_runtime.layers.whole_change import WholeAdapters, WholeChange
from core_runtime.models.adapters.layers import ABSORBED, OUTER, LayerKey, adapted_linears, expert_layers
from core_runtime.models.decoder import Decoder
from core_runtime.models.decoder_weights import BlockWeights
from core_runtime.models.experts_beside import ExpertsBeside
from core_runtime.models.fallback.model import ModuleModel
from core_runtime.models.mixers.latent import LatentMixer
from core_runtime.models.mixers.state import StateMixer
from core_runtime.models.mlp import ExpertsMLP
from core_runtime.models.tensors.rank_share import SEGMENTS
from core_runtime.models.vector_head import VectorHead
from core_runtime.weights.low_rank import LowRank

HEAD_KEY: Final = LayerKey(OUTER, "head")
"""Key of the output head's table, which is no layer of a block."""
FINAL_KEY: Final = LayerKey(OUTER, "final")
"""Key of the norm before the head, in whose calls it is."""


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """An adapter in memory, as the tables hold it.

    layers: changes of each layer.
    gains: whether it multiplies outputs of a layer (DoRA).
    embedding: change of the embedding, or None.
    head: change of the output head, or None. packed_head: its low-rank change, or None.
    classes: head for classes that replaces the model's, or None.
    norms: what it replaces of the model's norms, by key.
    whole: tensors that it has in place of the model's, by block.
    experts: blocks of which it changes an expert, here or on another rank.
    """

    facts: AdapterFacts
    layers: Mapping[LayerKey, PackedLowRank]
    gains: bool = False
    embedding: EmbeddingChange | None = None
    head: HeadChange | None = None
    packed_head: PackedLowRank | None = None
    classes: VectorHead | None = None
    norms: Mapping[LayerKey, NormChange] = field(default_factory=dict)
    whole: Mapping[int, WholeChange] = field(default_factory=dict)
    experts: frozenset[int] = frozenset()


class PlacedAdapters:
    """The placed adapters of one worker, for the model that was bound last.

    count: adapters that may be placed at once.
    max_rank: largest rank of a matrix.
    dtype: dtype of the matrices.

    rows: row of each placed adapter in all tables, by digest.
    tables: table of each layer, and of the output head; of experts as soon as an adapter changes them.
    classes: heads for classes that replace the model's, by row.
    """

    def __init__(self, count: int, max_rank: int, dtype: torch.dtype) -> None:
        self._count = count
        self._max_rank = max_rank
        self.dtype = dtype
        self.rows: dict[str, int] = {}
        self.tables: dict[LayerKey, Any] = {}
        self._read: dict[str, ReadAdapter] = {}
        self._step = StepAdapters()
        self._gaining: set[int] = set()
        self._experts: dict[int, set[int]] = {}
        self._expert_linears: dict[LayerKey, tuple[Linear, StepAdapters]] = {}
        self._embeddings: dict[int, EmbeddingChange] = {}
        self._heads: dict[int, HeadChange] = {}
        self._changing_head: set[int] = set()
        self._norms: dict[LayerKey, dict[int, NormChange]] = {}
        self._changing_norms: set[int] = set()
        self._whole: dict[int, dict[int, WholeChange]] = {}
        self._changing_whole: set[int] = set()
        self.classes: dict[int, VectorHead] = {}

    def bind(self, model: Decoder | ModuleModel) -> None:
        """Let the layers of a model use the tables. A later model must have the same shape. Raises UserError."""
        if not isinstance(model, Decoder):
            raise UserError("--enable-lora: the layers of transformers take no adapters; leave it out.")
        self._kernels = model.kernels
        for key, linear in adapted_linears(model.weights):
            if key not in self.tables:
                parts = 1 if key.block == OUTER else len(model.spec.block_linears(key.block)[key.role])
                self.tables[key] = self._table_of(linear, parts)
            self._bind_linear(linear, self.tables[key])
        for index, block in enumerate(model.weights.blocks):
            self._bind_block(index, block)
        for key, norm in norms_of(model.weights):
            norm.adapters = NormAdapters(self._step, self._norms.setdefault(key, {}))
        if model.embedding is not None:
            model.embedding.adapters = EmbeddingAdapters(self._step, self._embeddings)
        head = model.weights.head
        if model.head is not None and head is not None and head.tokens is not None:
            if HEAD_KEY not in self.tables:
                self.tables[HEAD_KEY] = self._make(head.tokens.shape)
            model.head.adapters = HeadAdapters(self._step, self.tables[HEAD_KEY], self._heads)

    def _bind_linear(self, linear: Linear, table: Any) -> None:
        """Let a linear layer use its table. One whose inputs ranks divide has its updates after the sum of its products."""
        if isinstance(linear, SummedLinear):
            assert linear.sums is not None, "a decoder attaches its layers when it is made"
            table.attach(linear.sums)
            linear.adapters = LayerAdapters(self._step, table, None)
        else:
            linear.adapters = LayerAdapters(self._step, table, linear.single)

    def _table_of(self, linear: Linear, num_parts: int) -> LowRankTable:
        """Make the table of a linear layer."""
        shape = linear.out_features, linear.in_features
        if not isinstance(linear, SummedLinear):
            return self._make(shape, num_parts)
        width = num_parts * self._max_rank
        share = max(SEGMENTS * linear.in_features // linear.whole_inputs, 1)
        inner = self._make((width, linear.in_features), num_parts, share)
        return DividedTable(inner, self._make((linear.out_features, width), num_parts, 1))

    def _make(self, shape: tuple[int, int], num_parts: int = 1, segments: int = SEGMENTS) -> LowRankTable:
        """Make the table of a layer of shape (N, K). segments: limit of segments of K."""
        return self._kernels.low_rank(
            shape, self._count, self.dtype, max_rank=num_parts * self._max_rank, segments=segments
        )

    def _bind_block(self, index: int, block: BlockWeights) -> None:
        """Let latent attention, recurrences, streams and experts of a block use adapters."""
        whole = self._whole.setdefault(index, {})
        if block.streams is not None:
            block.streams.adapters = WholeAdapters(self._step, whole)
        for mixer in block.mixers:
            if isinstance(mixer, StateMixer):
                mixer.adapters = StateAdapters(self._step, whole)
            if isinstance(mixer, LatentMixer):
                key = LayerKey(index, ABSORBED)
                if key not in self.tables:
                    self.tables[key] = AbsorbedAdapters(self._step, mixer.spec, self._make)
                mixer.adapters = self.tables[key]
        mlp = block.mlp.experts if isinstance(block.mlp, ExpertsBeside) else block.mlp
        if not isinstance(mlp, ExpertsMLP) or mlp.separate is None:
            return
        separate = mlp.separate
        plain = separate.gate_up[0].out_features == separate.down[0].in_features
        between = mlp.kernels.activate if plain else mlp.kernels.gated
        experts = AdaptedExperts(
            separate.gate_up,
            separate.down,
            separate.activation,
            between,
            weight_inputs=separate.weight_inputs,
            max_ranges=COMBINE_RANGES if mlp.places is None else max(COMBINE_RANGES // mlp.places.held.size, 1),
        )
        experts.step = StepAdapters()
        for key, linear in expert_layers(separate, index):
            self._expert_linears[key] = linear, experts.step
            if key in self.tables:
                linear.adapters = LayerAdapters(experts.step, self.tables[key], linear.single)
        mlp.adapters = ExpertsAdapters(self._step, experts, self._experts.setdefault(index, set()))

    def pack(self, key: LayerKey, updates: Sequence[LowRank]) -> PackedLowRank:
        """Repack the updates of a layer. Raises ValueError where they do not fit."""
        if key not in self.tables:
            # There are many experts, and few adapters change them, so their tables are made when one does.
            if key not in self._expert_linears:
                raise ValueError("the experts of this model are one weight, which adapters cannot change")
            linear, step = self._expert_linears[key]
            self.tables[key] = self._make((linear.out_features, linear.in_features), 2)
            linear.adapters = LayerAdapters(step, self.tables[key], linear.single)
        packed: PackedLowRank = self.tables[key].pack(updates)
        return packed

    def release(self) -> None:
        """Forget all adapters, and the tables, whose memory is the device's."""
        for kept in (self.rows, self.tables, self._read, self._embeddings, self._heads, self.classes):
            kept.clear()
        self._expert_linears.clear()
        self._experts.clear()
        self._norms.clear()
        self._whole.clear()
        for rows in (self._gaining, self._changing_head, self._changing_norms, self._changing_whole):
            rows.clear()

    @property
    def recordable(self) -> bool:
        """Whether a step with adapters can be recorded."""
        eager = (key for key in self.tables if key != HEAD_KEY and key.expert < 0)
        return all(is_recordable(self.tables[key]) for key in eager)

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
        row = self._free_row()
        self._place_layers(row, adapter)
        self._place_outer(row, adapter)
        self.rows[digest] = row

    def _free_row(self) -> int:
        """Return the first row that no adapter has. Raises UserError if there is none."""
        free = set(range(self._count)).difference(self.rows.values())
        if not free:
            raise UserError(f"All {self._count} places of adapters are taken; unload one, or set --max-cpu-loras.")
        return min(free)

    def _place_layers(self, row: int, adapter: ReadAdapter) -> None:
        """Give an adapter's changes of layers and norms a row."""
        for key, packed in adapter.layers.items():
            self.tables[key].set(row, packed)
        for block in adapter.experts:
            self._experts[block].add(row)
        if adapter.gains:
            self._gaining.add(row)
        for key, change in adapter.norms.items():
            self._norms[key][row] = change
            self._changing_norms.add(row)
        for block, whole in adapter.whole.items():
            self._whole[block][row] = whole
            self._changing_whole.add(row)

    def _place_outer(self, row: int, adapter: ReadAdapter) -> None:
        """Give an adapter's changes of embedding and heads a row."""
        if adapter.embedding is not None:
            self._embeddings[row] = adapter.embedding
        if adapter.head is not None:
            self._heads[row] = adapter.head
        if adapter.packed_head is not None:
            self.tables[HEAD_KEY].set(row, adapter.packed_head)
        if adapter.classes is not None:
            self.classes[row] = adapter.classes
        if adapter.head is not None or adapter.packed_head is not None or FINAL_KEY in adapter.norms:
            self._changing_head.add(row)

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
        changing = (self._gaining, self._changing_head, self._changing_norms, self._changing_whole)
        for rows in (*changing, *self._experts.values()):
            rows.discard(row)
        for changes in (self._embeddings, self._heads, self.classes):
            changes.pop(row, None)
        for norm in self._norms.values():
            norm.pop(row, None)
        for whole in self._whole.values():
            whole.pop(row, None)

    def are_recordable(self, used: Sequence[int]) -> bool:
        """Whether a step that uses these rows can be recorded."""
        changing = (self._gaining, self._changing_norms, self._changing_whole)
        return all(rows.isdisjoint(used) for rows in (*changing, self._embeddings.keys(), *self._experts.values()))

    def change_head(self, used: Sequence[int]) -> bool:
        """Whether any of these rows changes the model's head, or the norm before it."""
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
        self._step.begin(
            rows,
            gaining,
            changes_head=self.change_head(used),
            changes_norms=not self._changing_norms.isdisjoint(used),
            changes_whole=not self._changing_whole.isdisjoint(used),
        )
