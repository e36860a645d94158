"""From a checkpoint to prepared weights, one tensor at a time: the peak is the weights plus one layer.

Owns: which tensors are read, which part of the model each belongs to, and when a part is complete.
Never does: know a file format (loaders), a packing (quantization methods) or a chip (kernels).
Called by: the model's instance, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from core.api.checkpoint import CheckpointManifest
from core.api.decoder_spec import DecoderSpec, ExpertsSpec, MLPSpec, NormTensor, mixer_parts
from core.api.draft_input import MASK_HIDDEN
from core.api.errors import CheckpointError
from core.api.model_part import Part
from core.api.specs import LatentSpec, RowOrder
from core.layers.activations import learned
from core.layers.kernels import KernelSet, Room
from core.layers.linear import Linear
from core.models.decoder import BlockWeights, DecoderWeights
from core.models.draft_input import DraftInputWeights
from core.models.embedding import EmbeddingWeights, sinusoids
from core.models.head import HeadWeights
from core.models.mixers import Mixer, build_mixers
from core.models.mlp import BlockMLP, DenseMLP, ExpertsMLP
from core.models.norm import Norm
from core.models.packing import Packing
from core.models.pending import Pending, pending_experts, pending_halves, pending_linear, pending_matrix
from core.models.prepared import PreparedWeights, Recorder
from core.models.progress import loading_bar
from core.models.row_order import row_order
from core.models.tensor_check import OWN_HEAD, check_tensors
from core.models.vector_head import VectorHead, head_of
from core.plugin.contracts import LinearKernel, Loader, QuantizationMethod

WHOLE: Final = Part()


class PendingBlock:
    """One decoder layer. vectors: names of its tensors that are no matrices."""

    def __init__(self, spec: DecoderSpec, whole: DecoderSpec, index: int, packing: Packing) -> None:
        self._spec = spec
        self._index = index
        self._packing = packing
        self._parts = mixer_parts(spec, index)
        self._block = spec.blocks[index]
        # rows are ordered before they are cut, so by what the whole model has
        self._orders = mixer_parts(whole, spec.first_block - whole.first_block + index).orders
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
        self.vectors: set[str] = set()
        for norm in self._norms.values():
            self.vectors.update(norm.tensors())
        self.vectors.update(name for name, _ in self._parts.params.values())
        self.vectors.update(self._activation_tensors)
        if self._correction is not None:
            name, _ = self._correction
            self.vectors.add(name)

    @property
    def pending(self) -> list[Pending[Any]]:
        """Everything that waits for matrices."""
        halves = [] if self._halves is None else [self._halves]
        experts = [] if self._experts is None else self._experts.pending
        return [*self._linears.values(), *halves, *experts]

    def build(self, vectors: Mapping[str, Tensor]) -> BlockWeights:
        """The layer's weights. vectors: its tensors that are no matrices, by name."""
        norms = {}
        for role, norm in self._norms.items():
            norms[role] = build_norm(self._packing, norm, vectors, self._orders.get(norm.name, ()))
        mixers = self._mixers(norms, vectors)
        return BlockWeights(mixers, self._mlp(norms, vectors), norms)

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
        for role, (name, _) in self._parts.params.items():
            params[role] = self._packing.on_device(vectors[name])
        halves = None if self._halves is None else self._halves.built
        return build_mixers(self._spec, self._index, self._packing.kernels, linears, halves, norms, params)

    def _mlp(self, norms: Mapping[str, Norm], vectors: Mapping[str, Tensor]) -> BlockMLP | None:
        if self._block.experts is not None:
            return self._experts_mlp(self._block.experts, vectors)
        mlp = self._spec.block_mlp(self._index)
        if mlp is None:
            return None
        if self._activation_tensors:
            parameters = [float(vectors[name]) for name in self._activation_tensors]
            mlp = msgspec.structs.replace(mlp, activation=learned(mlp.activation, parameters))
        return self._dense(mlp, "gate_up", "down", norms.get("mlp_inner"))

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
        return ExpertsMLP(self._packing.kernels, router, kernel, spec, correction, shared, gate)

    def _dense(self, mlp: MLPSpec, gate_up: str, down: str, inner_norm: Norm | None = None) -> DenseMLP:
        first = self._linears[gate_up].built
        second = self._linears[down].built
        return DenseMLP(self._packing.kernels, mlp, first, second, inner_norm)


def build_norm(
    packing: Packing, norm: NormTensor, vectors: Mapping[str, Tensor], orders: Sequence[RowOrder] = ()
) -> Norm:
    """A norm from the tensors of a checkpoint. orders: of its weights, as of the rows of the matrix in front of it."""

    def taken(name: str) -> Tensor:
        tensor = vectors[name]
        if orders:
            tensor = tensor.flatten()[row_order(orders, tensor.numel())].view(tensor.shape)
        return tensor

    weight = torch.ones(norm.shape)
    if norm.spec.weighted:
        weight = taken(f"{norm.name}.weight") + norm.spec.offset
    bias = packing.on_device(taken(f"{norm.name}.bias")) if norm.spec.bias else None
    return Norm(packing.kernels, norm.spec, packing.on_device(weight), bias)


class WeightLoading:
    """Builds `DecoderWeights` from a loader's tensors.

    spec: of the whole model, whose tensors the checkpoint has; weights are cut to `part` of it after they are packed.
    room, prepared, recorder: see `Packing`.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        manifest: CheckpointManifest,
        method: QuantizationMethod | None,
        kernels: KernelSet,
        dtype: str,
        activation_dtype: torch.dtype,
        device: torch.device,
        part: Part = WHOLE,
        room: Room | None = None,
        prepared: PreparedWeights | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.spec = spec.local(part)
        self._whole = spec
        self.manifest = manifest
        self._prepared = prepared
        self.packing = Packing(spec, part, method, kernels, dtype, activation_dtype, device, room, prepared, recorder)

    def run(self, loader: Loader, *, progress: bool = False) -> DecoderWeights:
        """Read every tensor once. Raises CheckpointError when one is missing or has another shape."""
        self._check_tensors()
        self._check_tied(loader)
        spec = self.spec
        embedding = pending_matrix(self.packing, spec.embedding()) if spec.embeds_tokens else None
        head = pending_matrix(self.packing, spec.head()) if spec.has_own_head else None
        projections = {role: pending_matrix(self.packing, part) for role, part in spec.projections().items()}
        joining = {role: pending_matrix(self.packing, part) for role, part in spec.draft_linears().items()}
        blocks = [PendingBlock(spec, self._whole, index, self.packing) for index in range(len(spec.blocks))]

        pending: list[Pending[Any]] = [matrix for matrix in (embedding, head) if matrix is not None]
        pending += (*projections.values(), *joining.values())
        names: set[str] = set()
        for block in blocks:
            pending += block.pending
            names |= block.vectors
        for norm in (*spec.outer_norms().values(), *spec.draft_norms().values()):
            names.update(norm.tensors())
        names.update(name for name, _ in spec.tables().values())
        if spec.pooling_head is not None:
            names.update(spec.pooling_head.tensors())
        vectors = self._read(loader, pending, names, progress=progress)
        if self._prepared is not None:
            self._prepared.finish()

        built = [block.build(vectors) for block in blocks]
        rows = None if embedding is None else embedding.built
        own = rows if head is None else head.built
        project = {role: matrix.built for role, matrix in projections.items()}
        way_in = self._embedding(rows, project.get("in"), vectors)
        way_out = self._head(own, project.get("out"), vectors)
        taken = self._draft_input({role: matrix.built for role, matrix in joining.items()}, vectors)
        return DecoderWeights(way_in, way_out, built, taken, self._pooling_head(vectors))

    def _pooling_head(self, vectors: Mapping[str, Tensor]) -> VectorHead | None:
        """What makes classes of pooled vectors; None where the checkpoint has no such head."""
        spec = self.spec.pooling_head
        return None if spec is None else head_of(spec, vectors, self.manifest.ref)

    def _draft_input(
        self, linears: Mapping[str, LinearKernel], vectors: Mapping[str, Tensor]
    ) -> DraftInputWeights | None:
        """The way into a draft; None where this is none that takes in hidden states."""
        spec = self.spec
        if spec.draft_input is None:
            return None
        norms = {role: build_norm(self.packing, norm, vectors) for role, norm in spec.draft_norms().items()}
        mask_hidden = None
        if spec.draft_input.masked:
            mask_hidden = self.packing.as_activation(vectors[MASK_HIDDEN].view(1, -1))
        return DraftInputWeights(linears, norms, mask_hidden)

    def _embedding(
        self, rows: LinearKernel | None, project: LinearKernel | None, vectors: Mapping[str, Tensor]
    ) -> EmbeddingWeights | None:
        """The way into the model; None where this part has no matrix of embeddings."""
        if rows is None:
            return None
        spec = self.spec
        tables = spec.tables()
        positions = segments = norm = None
        if "positions" in tables:
            name, _ = tables["positions"]
            positions = self.packing.as_activation(vectors[name])
        elif spec.positions is not None:
            positions = self.packing.as_activation(sinusoids(spec.positions, spec.hidden_size))
        if "token_types" in tables:
            name, _ = tables["token_types"]
            segments = self.packing.as_activation(vectors[name])
        outer = spec.outer_norms()
        if "embed" in outer:
            norm = build_norm(self.packing, outer["embed"], vectors)
        return EmbeddingWeights(rows, project, positions, segments, norm)

    def _head(
        self, tokens: LinearKernel | None, project: LinearKernel | None, vectors: Mapping[str, Tensor]
    ) -> HeadWeights | None:
        """The way out of the model; None where this part does not end with it."""
        spec = self.spec
        if not spec.holds_head:
            return None
        outer = spec.outer_norms()
        norm = build_norm(self.packing, outer["final"], vectors) if "final" in outer else None
        bias = None
        tables = spec.tables()
        if "logits" in tables:
            name, _ = tables["logits"]
            whole = vectors[name]
            bias = self.packing.on_device(whole[spec.vocab_start : spec.vocab_start + spec.vocab_size])
        token_ids = None
        if "tokens" in tables:
            name, _ = tables["tokens"]
            token_ids = self._token_ids(vectors[name])
        return HeadWeights(norm, project, tokens if spec.causal_lm else None, bias, token_ids)

    def _token_ids(self, distances: Tensor) -> Tensor:
        """int64: the token of each row of a smaller head, which lies that far behind the row's number."""
        ids = torch.arange(len(distances)) + distances.to(torch.int64)
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or most >= self.spec.vocab_size or len(ids.unique()) < len(ids):
            raise CheckpointError(
                f"{self.manifest.ref}: the rows of the output head mean tokens {least} to {most}; expected different ones of "
                f"a vocabulary of {self.spec.vocab_size}. The draft belongs to another model, or is damaged."
            )
        return ids.to(self.packing.device)

    def _read(
        self, loader: Loader, pending: list[Pending[Any]], names: set[str], *, progress: bool
    ) -> dict[str, Tensor]:
        """Give each matrix to the part that waits for it. Returns the other tensors, in float32."""
        owners = {name: one for one in pending for name in one.missing}
        reads = [*owners, *sorted(names)]
        vectors: dict[str, Tensor] = {}
        with loading_bar(self.manifest, reads, shown=progress) as bar:
            for name, tensor in loader.iter(self.manifest, reads):
                if name in names:
                    vectors[name] = tensor.to(torch.float32, copy=True)
                else:
                    owners[name].arrive(name, tensor)
                bar.update(tensor.nbytes)
        absent: list[str] = []
        for one in pending:
            absent += sorted(one.missing)
        absent += sorted(names - vectors.keys())
        if absent:
            raise CheckpointError(
                f"The loader did not deliver {absent[0]} (and {len(absent) - 1} more) of {self.manifest.ref}."
            )
        return vectors

    def _check_tensors(self) -> None:
        """Nothing is missing, and nothing is left unread: a model does not compute with what it does not read."""
        found = check_tensors(self.manifest, self._whole, self.packing.plan)
        problems = found.problems(self.manifest.ref, self._whole)
        if problems:
            raise CheckpointError(problems[0])

    def _check_tied(self, loader: Loader) -> None:
        """A head beside the embedding that it is tied to must be equal to it."""
        spec = self.spec
        both = [f"{spec.embedding().name}.weight", OWN_HEAD]
        if not spec.tied or not all(name in self.manifest.tensors for name in both):
            return
        embedding, head = (tensor.clone() for _, tensor in loader.iter(self.manifest, both))
        if not torch.equal(embedding, head):
            raise CheckpointError(
                f"{self.manifest.ref} has an output head ({OWN_HEAD}) that differs from its embedding, though its "
                "configuration ties them; set --hf-overrides.tie_word_embeddings false to use it."
            )
