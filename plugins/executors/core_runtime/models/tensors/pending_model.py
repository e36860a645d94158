"""A model whose tensors are still being read: its blocks, its embedding and its head.

Owns: the tensors that each block waits for, and what is built from them. Never does: read, pack or prepare.
Called by: the weight loading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor

from core.api.specs import LatentSpec, RowOrder
from core_runtime.contracts import LinearKernel
from core_runtime.layers.activations import learned
from core_runtime.layers.linear import Linear
from core_runtime.models.decoder_weights import BlockWeights
from core_runtime.models.experts_beside import ExpertsBeside
from core_runtime.models.gated_norm import GatedNorm
from core_runtime.models.mixers import Mixer, build_mixers
from core_runtime.models.mlp import BlockMLP, DenseMLP, ExpertsMLP
from core_runtime.models.norm import Norm
from core_runtime.models.streams import BlockStreams
from core_runtime.models.tensors.packing import Packing
from core_runtime.models.tensors.pending import Pending, pending_experts, pending_halves, pending_linear, pending_matrix
from core_runtime.models.tensors.row_order import row_order
from core_runtime.specs.block_parts import mixer_parts
from core_runtime.specs.block_spec import ExpertsSpec, MLPSpec
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.mixer_parts import NormTensor


class PendingBlock:
    """One decoder layer whose tensors are still being read. vectors: names of its tensors that are not matrices."""

    def __init__(self, spec: DecoderSpec, whole: DecoderSpec, index: int, packing: Packing) -> None:
        self._spec = spec
        self._index = index
        self._packing = packing
        self._parts = mixer_parts(spec, index)
        self._block = spec.blocks[index]
        # rows are ordered before they are cut, so the orders are those of the whole model
        self._whole_parts = mixer_parts(whole, spec.first_block - whole.first_block + index)
        self._orders = self._whole_parts.orders
        self._linears: dict[str, Pending[Linear]] = {}
        for role, parts in spec.block_linears(index).items():
            self._linears[role] = pending_linear(packing, parts, self._orders)
        self._halves = self._pending_halves()
        experts = spec.expert_linears(index)
        self._experts = None
        if self._block.experts is not None:
            activation = self._block.experts.activation or spec.mlp.activation
            weight_inputs = self._block.experts.weight_inputs
            self._experts = pending_experts(packing, experts, activation, weight_inputs=weight_inputs)
        self._norms = spec.block_norms(index)
        self._activation_tensors = list(spec.activation_tensors(index))
        self._correction = spec.correction(index)
        self._factors = spec.expert_factors(index)
        self._scalar = spec.layer_scalar(index)
        self.vectors: set[str] = set() if self._scalar is None else {self._scalar}
        for norm in self._norms.values():
            self.vectors.update(norm.tensors())
        self.vectors.update(name for name, _ in self._parts.params.values())
        self.vectors.update(self._activation_tensors)
        self._streams = spec.stream_tensors(index)
        self.vectors.update(name for name, _ in self._streams.values())
        for vector in (self._correction, self._factors):
            if vector is not None:
                name, _ = vector
                self.vectors.add(name)

    @property
    def pending(self) -> list[Pending[Any]]:
        """Return all parts that wait for matrices."""
        halves = [] if self._halves is None else [self._halves]
        experts = [] if self._experts is None else self._experts.pending
        return [*self._linears.values(), *halves, *experts]

    def build(self, vectors: Mapping[str, Tensor]) -> BlockWeights:
        """Return the layer's weights. vectors: its tensors that are not matrices, by name."""
        norms = {}
        for role, norm in self._norms.items():
            norms[role] = build_norm(self._packing, norm, vectors, self._orders.get(norm.name, ()))
        mixers = self._mixers(norms, vectors)
        linears = {role: pending.built for role, pending in self._linears.items()}
        for role in self._block.gated_norms:
            norms[role] = GatedNorm(norms[role], linears[f"layer_{role}_in"], linears[f"layer_{role}_out"])
        # A plain number: steps that are recorded have it in their calls.
        scalar = 1.0
        if self._scalar is not None and not vectors[self._scalar].is_meta:  # a dry run has no numbers
            scalar = float(vectors[self._scalar])
        streams = None
        if self._streams:
            small = {role: self._packing.on_device(vectors[name]) for role, (name, _) in self._streams.items()}
            streams = BlockStreams.of(linears, norms, small)
        return BlockWeights(mixers, self._mlp(norms, vectors), norms, linears, scalar, streams)

    def _pending_halves(self) -> Pending[Any] | None:
        absorbed = self._parts.absorbed
        if absorbed is None:
            return None
        mixer = self._block.mixer
        assert isinstance(mixer, LatentSpec), "only latent attention absorbs a matrix"
        return pending_halves(self._packing, absorbed, mixer)

    def _mixers(self, norms: Mapping[str, Norm], vectors: Mapping[str, Tensor]) -> tuple[Mixer, ...]:
        linears = {role: pending.built for role, pending in self._linears.items()}
        params = {}
        for role, (name, shape) in self._parts.params.items():
            sections = self._whole_parts.sections.get(role, ()), self._parts.sections.get(role, ())
            params[role] = self._packing.on_device(self._packing.cut(vectors[name], shape, *sections))
        halves = None if self._halves is None else self._halves.built
        return build_mixers(self._spec, self._index, self._packing.kernels, linears, halves, norms, params)

    def _mlp(self, norms: Mapping[str, Norm], vectors: Mapping[str, Tensor]) -> BlockMLP | ExpertsBeside | None:
        if self._block.experts is not None:
            experts = self._experts_mlp(self._block.experts, vectors)
            return experts if self._factors is None else self._beside(experts, norms, vectors[self._factors[0]])
        mlp = self._spec.block_mlp(self._index)
        if mlp is None:
            return None
        # Read as plain numbers: activations are made from a description, which a kernel may compile into its code.
        if self._activation_tensors:
            parameters = [float(vectors[name]) for name in self._activation_tensors]
            mlp = msgspec.structs.replace(mlp, activation=learned(mlp.activation, parameters))
        return self._dense(mlp, "gate_up", "down", norms.get("mlp_inner"))

    def _beside(self, experts: ExpertsMLP, norms: Mapping[str, Norm], factors: Tensor) -> ExpertsBeside:
        return ExpertsBeside(
            experts,
            router=norms["router"],
            before=norms["before_experts"],
            behind=norms["behind_experts"],
            of_mlp=norms["behind_shared"],
            factors=self._packing.on_device(factors),
        )

    def _experts_mlp(self, spec: ExpertsSpec, vectors: Mapping[str, Tensor]) -> ExpertsMLP:
        assert self._experts is not None, "a block with experts waits for them"
        correction = None
        if self._correction is not None:
            name, _ = self._correction
            correction = self._packing.on_device(vectors[name])
        shared = None
        shared_mlp = self._spec.shared_mlp(self._index)
        if shared_mlp is not None:
            shared = self._dense(shared_mlp, "shared_gate_up", "shared_down")
        gate = self._linears["shared_gate"].built if spec.shared_gate else None
        router = self._linears["router"].built
        kernel = self._experts.build()
        return ExpertsMLP(self._packing.kernels, router, kernel, spec, correction, shared, gate, self._experts.separate)

    def _dense(self, mlp: MLPSpec, gate_up: str, down: str, inner_norm: Norm | None = None) -> DenseMLP:
        first = self._linears[gate_up].built
        second = self._linears[down].built
        low_rank = [self._linears[role].built for role in ("mlp_low", "mlp_low_out")] if mlp.low_rank else []
        return DenseMLP(self._packing.kernels, mlp, first, second, inner_norm, low_rank)


def build_norm(
    packing: Packing, norm: NormTensor, vectors: Mapping[str, Tensor], orders: Sequence[RowOrder] = ()
) -> Norm:
    """Return a norm from the tensors of a checkpoint. orders: orders of its weights, the same as those of the rows of
    the preceding matrix.
    """

    def taken(name: str) -> Tensor:
        tensor = vectors[name]
        if orders:
            tensor = tensor.flatten()[row_order(orders, tensor.numel())].view(tensor.shape)
        return packing.cut(tensor, norm.shape)

    # A norm without a weight gets one of ones: kernels then have one form of norm.
    weight = torch.ones(norm.shape)
    if norm.spec.weighted:
        # Added once here, so that no kernel has to know that Gemma stores its weights less one.
        weight = (taken(f"{norm.name}.weight") + norm.spec.offset) * norm.spec.scale
    bias = packing.on_device(taken(f"{norm.name}.bias")) if norm.spec.bias else None
    return Norm(packing.kernels, norm.spec, packing.on_device(weight), bias)


@dataclass(slots=True)
class PendingModel:
    """All parts of a model that wait for matrices.

    embedding, head: None where this part of the model has no such matrix of its own.
    projections: projections between embeddings and hidden states, by role.
    joining: matrices before a draft's blocks, by role.
    layer_tokens: the second embedding, or None.
    vectors: names of the model's small tensors that no part waits for: norms, tables and vectors.
    """

    embedding: Pending[LinearKernel] | None
    head: Pending[LinearKernel] | None
    projections: dict[str, Pending[LinearKernel]]
    joining: dict[str, Pending[LinearKernel]]
    blocks: list[PendingBlock]
    vectors: set[str]
    layer_tokens: Pending[LinearKernel] | None = None

    @classmethod
    def of(cls, spec: DecoderSpec, whole: DecoderSpec, packing: Packing) -> PendingModel:
        """Return the model before any tensor is read. whole: the model of which `spec` is a part."""
        blocks = [PendingBlock(spec, whole, index, packing) for index in range(len(spec.blocks))]
        return cls(
            embedding=pending_matrix(packing, spec.embedding()) if spec.embeds_tokens else None,
            head=pending_matrix(packing, spec.head()) if spec.has_own_head else None,
            projections={role: pending_matrix(packing, part) for role, part in spec.projections().items()},
            joining={role: pending_matrix(packing, part) for role, part in spec.draft_linears().items()},
            blocks=blocks,
            vectors=_vectors(spec, blocks),
            layer_tokens=None if spec.layer_inputs is None else pending_matrix(packing, spec.layer_inputs.tokens()),
        )

    @property
    def pending(self) -> list[Pending[Any]]:
        """Return all parts that wait for matrices, those of the blocks included."""
        found: list[Pending[Any]] = [
            matrix for matrix in (self.embedding, self.head, self.layer_tokens) if matrix is not None
        ]
        found += (*self.projections.values(), *self.joining.values())
        for block in self.blocks:
            found += block.pending
        return found


def _vectors(spec: DecoderSpec, blocks: Sequence[PendingBlock]) -> set[str]:
    """Return the names of all tensors that are not matrices."""
    names: set[str] = set()
    for block in blocks:
        names |= block.vectors
    for norm in (*spec.outer_norms().values(), *spec.draft_norms().values()):
        names.update(norm.tensors())
    names.update(name for name, _ in spec.tables().values())
    if spec.pooling_head is not None:
        names.update(spec.pooling_head.tensors())
    return names
