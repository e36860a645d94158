"""The shape of a model that runs on modules of transformers. Torch-free.

Owns: `ModuleSpec`, with the same interface as a `DecoderSpec` for the memory plan, the choice of plugins and the loading.
Never does: build the modules (`core_runtime.models.fallback` does). Called by: configuration, executor, loading.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from core.api.errors import UserError
from core.api.specs import AttentionSpec, LayerSpec
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.model_part import Part


class ModuleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One model of transformers, as observed in a trial call.

    family: its model type.
    hidden_size: size of a row that the head takes.
    vocab_size: logits per row.
    max_position: the longest context that the model was made for.
    mixers: attention calls of a forward pass, in order.
    matrices: linear layers that native kernels run, under their names in the module tree; without the head.
    embedding_matrix: token embedding; None: it stays a module of transformers.
    head_matrix: output head; None: it stays a module of transformers, or is the embedding.
    tied: whether the head is the embedding's matrix.
    tensors: name and shape of all other tensors of a checkpoint.
    renamed: map from names in the checkpoint to different names here.
    gathered: map from names in the checkpoint of which several are merged to the name of the merged tensor in `tensors`.
    widest: maximum outputs of a linear layer.
    """

    family: str
    hidden_size: int
    vocab_size: int
    max_position: int
    mixers: tuple[AttentionSpec, ...]
    matrices: tuple[LayerSpec, ...]
    embedding_matrix: LayerSpec | None
    head_matrix: LayerSpec | None
    tied: bool
    tensors: dict[str, tuple[int, ...]]
    renamed: dict[str, str] = {}
    gathered: dict[str, str] = {}
    widest: int = 0

    @property
    def lenders(self) -> dict[int, int]:
        """No attention call reads the keys and values of another one from the cache."""
        return {}

    @property
    def first_block(self) -> int:
        """Index of the first block, always 0: the model is never divided."""
        return 0

    def canonical(self, manifest: CheckpointManifest) -> CheckpointManifest:
        """Return a checkpoint with the names that tensors have here."""
        tensors = {}
        for source, info in manifest.tensors.items():
            name = self.renamed.get(source, source)
            tensors[name] = msgspec.structs.replace(info, name=name)
        return msgspec.structs.replace(manifest, tensors=tensors)

    def local(self, part: Part) -> ModuleSpec:
        """Return the model itself. Raises UserError for a part of it."""
        if part != Part():
            raise UserError(
                f"a {self.family} model runs on transformers' modules, which cannot be divided; use one part"
            )
        return self

    def linears(self) -> Iterator[LayerSpec]:
        """Yield every matrix that native kernels run, once."""
        for parts in self.fused_groups():
            yield from parts

    def fused_groups(self) -> Iterator[tuple[LayerSpec, ...]]:
        """Yield each matrix by itself, because it is not known which of them share an input."""
        for matrix in (self.embedding_matrix, *self.matrices, self.head_matrix):
            if matrix is not None:
                yield (matrix,)

    def halves(self) -> Iterator[LayerSpec]:
        """Return nothing: no matrix is absorbed."""
        return iter(())

    @property
    def num_plain(self) -> int:
        """Count of numbers in all tensors that no kernel uses."""
        total = 0
        for shape in self.tensors.values():
            numbers = 1
            for size in shape:
                numbers *= size
            total += numbers
        return total

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor in a checkpoint of this model, by its name in the module tree."""
        shapes = dict(self.tensors)
        for part in self.linears():
            shapes[f"{part.name}.weight"] = part.shape
            if part.bias:
                shapes[f"{part.name}.bias"] = (part.shape[0],)
        return shapes

    def buffers(self) -> dict[str, int]:
        """Return approximate widths of a step's buffers per token: inputs, outputs and intermediates of the widest layer."""
        return {"residual": self.hidden_size, "between": 4 * self.hidden_size, "wide": 3 * self.widest}

    def router_widths(self) -> tuple[int, int]:
        """Return zeros: experts, if any, are not known."""
        return 0, 0

    def chosen_keys(self) -> int:
        """Return zero: no attention of transformers' interface has an index."""
        return 0

    def told_choices(self) -> int:
        """Return zero: chosen experts are not known."""
        return 0

    def copies_rows(self) -> bool:
        """Return false: modules of transformers have no such buffer."""
        return False

    @property
    def stretch(self) -> float:
        """Factor by which a context may exceed `max_position`: always 1, because the modules handle scaling."""
        return 1.0


ModelSpec = DecoderSpec | ModuleSpec
"""The shape of a model: both kinds have the interface that configuration and worker use."""
