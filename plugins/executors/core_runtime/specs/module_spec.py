"""The shape of a model that is run by transformers' own modules. Torch-free.

Owns: `ModuleSpec`, which answers what the memory plan, the choice of plugins and the loading ask a `DecoderSpec`.
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
    """One model of transformers, as a trial call found it.

    family: its model type.
    hidden_size: numbers of a row that the head takes.
    vocab_size: logits of a row.
    max_position: the longest context that the model was made for.
    mixers: every call of attention in a forward pass, in order.
    matrices: the linear layers that native kernels run, under their names in the module tree; not the head.
    embedding_matrix: of the tokens; None: it stays as transformers has it.
    head_matrix: the output head; None: it stays as transformers has it, or is the embedding.
    tied: whether the head is the embedding's matrix.
    tensors: name and shape of everything else that a checkpoint brings.
    renamed: names of tensors in the checkpoint that are others here, and their names here.
    gathered: names of tensors in the checkpoint of which several become one of `tensors`, and the name of that one.
    widest: most outputs of a linear layer.
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
    def first_block(self) -> int:
        """Always the first one: the model is never divided."""
        return 0

    def canonical(self, manifest: CheckpointManifest) -> CheckpointManifest:
        """A checkpoint under the names that tensors have here."""
        tensors = {}
        for source, info in manifest.tensors.items():
            name = self.renamed.get(source, source)
            tensors[name] = msgspec.structs.replace(info, name=name)
        return msgspec.structs.replace(manifest, tensors=tensors)

    def local(self, part: Part) -> ModuleSpec:
        """The model itself. Raises UserError for a part of it."""
        if part != Part():
            raise UserError(
                f"a {self.family} model runs on transformers' modules, which cannot be divided; use one part"
            )
        return self

    def linears(self) -> Iterator[LayerSpec]:
        """Every matrix that native kernels run, once."""
        for parts in self.fused_groups():
            yield from parts

    def fused_groups(self) -> Iterator[tuple[LayerSpec, ...]]:
        """The same, each by itself: which of them share an input is not known."""
        for matrix in (self.embedding_matrix, *self.matrices, self.head_matrix):
            if matrix is not None:
                yield (matrix,)

    def halves(self) -> Iterator[LayerSpec]:
        """No matrix is absorbed."""
        return iter(())

    @property
    def num_plain(self) -> int:
        """Numbers of all tensors that no kernel takes."""
        total = 0
        for shape in self.tensors.values():
            numbers = 1
            for size in shape:
                numbers *= size
            total += numbers
        return total

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of a checkpoint of this model, by its name in the module tree."""
        shapes = dict(self.tensors)
        for part in self.linears():
            shapes[f"{part.name}.weight"] = part.shape
            if part.bias:
                shapes[f"{part.name}.bias"] = (part.shape[0],)
        return shapes

    def buffers(self) -> dict[str, int]:
        """Width of what a step holds of each token, about: inputs, outputs and what lies between in the widest layer."""
        return {"residual": self.hidden_size, "between": 4 * self.hidden_size, "wide": 3 * self.widest}

    def router_widths(self) -> tuple[int, int]:
        """None that is known."""
        return 0, 0

    @property
    def stretch(self) -> float:
        """How many times longer than `max_position` a context may be: the model's own modules know."""
        return 1.0


ModelSpec = DecoderSpec | ModuleSpec
"""The shape of a model, whoever runs its layers: both answer what the configuration and the worker ask."""
