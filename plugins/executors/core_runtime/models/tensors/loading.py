"""Loading of a checkpoint to prepared weights, one tensor at a time: peak memory is the weights plus one layer.

Owns: the choice of tensors to read, the part of the model that each belongs to, and the moment when a part is complete.
Never does: know a file format (loaders), a packing (quantization methods) or a chip (kernels).
Called by: the model's instance, once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from core.api.errors import CheckpointError
from core_runtime.contracts import LinearKernel, Loader, keeps_tensors
from core_runtime.layers.linear import Linear
from core_runtime.models.decoder_weights import DecoderWeights
from core_runtime.models.draft_input import DraftInputWeights
from core_runtime.models.embedding import EmbeddingWeights, sinusoids
from core_runtime.models.head import HeadWeights
from core_runtime.models.layer_inputs import LayerInputWeights
from core_runtime.models.streams import StreamWeights
from core_runtime.models.tensors.packing import Packing
from core_runtime.models.tensors.pending import Pending
from core_runtime.models.tensors.pending_model import PendingModel, build_norm
from core_runtime.models.tensors.progress import loading_bar
from core_runtime.models.tensors.tensor_check import OWN_HEAD, check_tensors
from core_runtime.models.vector_head import VectorHead, head_of
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_input import MASK_HIDDEN
from core_runtime.specs.model_part import Part

logger = logging.getLogger(__name__)
WHOLE: Final = Part()


class WeightLoading:
    """One loading of a model: builds `DecoderWeights` from a loader's tensors.

    spec: shape of the whole model, whose tensors the checkpoint has. Weights are cut to the packing's part of it after they
        are packed.
    packing: makes the kernels.
    """

    def __init__(self, spec: DecoderSpec, manifest: CheckpointManifest, packing: Packing) -> None:
        self.spec = spec.local(packing.part)
        self._whole = spec
        self.manifest = manifest
        self.packing = packing

    def run(self, loader: Loader, *, progress: bool = False) -> DecoderWeights:
        """Read every tensor once, except those of parts that are taken over from the previous model.

        Raises CheckpointError when a tensor is missing or has another shape.
        """
        self._check_tensors()
        self._check_tied(loader)
        waiting = PendingModel.of(self.spec, self._whole, self.packing)
        part = self.packing.part
        # A rank that shares layers reads parts of tensors, which the packing counts.
        whole = [] if part.size > 1 else [name for one in waiting.pending for name in one.missing]
        vectors = self._read(loader, waiting.pending, waiting.vectors, progress=progress)
        if part != WHOLE:
            self._report(loader, [*whole, *vectors])
        return self._built(waiting, vectors)

    def _report(self, loader: Loader, read: Sequence[str]) -> None:
        """Log how much of the checkpoint a rank has read. read: names of the tensors that it has read as a whole."""
        part = self.packing.part
        tensors = self.manifest.tensors
        whole = sum(tensor.nbytes for tensor in tensors.values())
        wholly = sum(tensors[name].nbytes for name in read)
        logger.info(
            "Rank %d of %d needs %d of the %d bytes of %s%s.%s",
            part.rank,
            part.size,
            self.packing.read_nbytes + wholly,
            whole,
            self.manifest.ref,
            "" if part.blocks is None else f" for blocks {part.blocks[0]} to {part.blocks[1] - 1}",
            "" if keeps_tensors(loader) else " Its loader reads each of their tensors as a whole.",
        )

    def _built(self, waiting: PendingModel, vectors: Mapping[str, Tensor]) -> DecoderWeights:
        """Return the weights, once all matrices have arrived. vectors: the other tensors, by name."""
        built = [block.build(vectors) for block in waiting.blocks]
        rows = None if waiting.embedding is None else waiting.embedding.built
        # A tied head uses the embedding's kernel.
        own = rows if waiting.head is None else waiting.head.built
        project = {role: matrix.built for role, matrix in waiting.projections.items()}
        way_in = self._embedding(rows, project.get("in"), vectors)
        way_out = self._head(own, project.get("out"), vectors)
        taken = self._draft_input({role: matrix.built for role, matrix in waiting.joining.items()}, vectors)
        inputs = None
        if waiting.layer_tokens is not None:
            norm = build_norm(self.packing, self.spec.outer_norms()["layers"], vectors)
            inputs = LayerInputWeights(waiting.layer_tokens.built, Linear([project["layers"]]), norm)
        streams = None
        if self.spec.streams is not None:
            further = range(self.spec.streams.count - 1)
            streams = StreamWeights(
                *([Linear([project[f"{way}_{number}"]]) for number in further] for way in ("into", "back"))
            )
        pooling = self._pooling_head(vectors)
        return DecoderWeights(way_in, way_out, built, taken, pooling, layer_inputs=inputs, streams=streams)

    def _pooling_head(self, vectors: Mapping[str, Tensor]) -> VectorHead | None:
        """Return the head that turns pooled vectors into class scores; None where the model has no such head."""
        spec = self.spec.pooling_head
        return None if spec is None else head_of(spec, vectors, self.manifest.ref)

    def _draft_input(
        self, linears: Mapping[str, LinearKernel], vectors: Mapping[str, Tensor]
    ) -> DraftInputWeights | None:
        """Return the input layer of a draft; None for a model that does not take in hidden states."""
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
        """Return the input layer of the model; None where this part has no matrix of embeddings."""
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
        if positions is not None and spec.positions is not None:
            positions = positions[spec.positions.offset :]
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
        """Return the output layer of the model; None where this part does not contain it."""
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
        """Return the token of each row of a smaller head, int64: the row's number plus its entry in `distances`.

        Raises CheckpointError when tokens repeat or are not in the vocabulary.
        """
        if distances.is_meta:  # in a dry run there are no numbers to check
            return distances.to(torch.int64)
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
        """Pass each matrix to the part that waits for it. Returns the other tensors, in float32."""
        owners: dict[str, list[Pending[Any]]] = {}  # several parts may share one, such as a rotation
        for one in pending:
            for name in one.missing:
                owners.setdefault(name, []).append(one)
        reads = [*owners, *sorted(names)]
        vectors: dict[str, Tensor] = {}
        keeps = keeps_tensors(loader)
        prepared = self.packing.prepared
        more = 0 if prepared is None else prepared.unread
        with loading_bar(self.manifest, reads, shown=progress, more=more) as bar:
            for name, tensor in loader.iter(self.manifest, reads):
                if name in names:
                    # A copy, because the loader may reuse the memory of the tensor.
                    vectors[name] = tensor.to(torch.float32, copy=True)
                else:
                    for one in owners[name]:
                        one.arrive(name, tensor, keeps=keeps)
                bar.update(tensor.nbytes)
            if prepared is not None:
                prepared.finish(bar.update)
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
        """Check that no tensor is missing or unread: a tensor that is not read would be missing from the
        computation.
        """
        found = check_tensors(self.manifest, self._whole, self.packing.plan)
        problems = found.problems(self.manifest.ref, self._whole)
        if problems:
            raise CheckpointError(problems[0])

    def _check_tied(self, loader: Loader) -> None:
        """Check that a head stored next to the embedding that it is tied to is equal to it."""
        spec = self.spec
        both = [f"{spec.embedding().name}.weight", OWN_HEAD]
        if not spec.tied or not spec.holds_head or not all(name in self.manifest.tensors for name in both):
            return
        # Neither tensor has changed since the previous model, whose loading has compared them.
        store = self.packing.store
        if store is not None and not store.is_new(both):
            return
        embedding, head = (tensor.clone() for _, tensor in loader.iter(self.manifest, both))
        if not torch.equal(embedding, head):
            raise CheckpointError(
                f"{self.manifest.ref} has an output head ({OWN_HEAD}) that differs from its embedding, though its "
                "configuration ties them; set --hf-overrides.tie_word_embeddings false to use it."
            )
