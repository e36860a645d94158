"""The head of a model that tells classes, as a shape. Torch-free.

Owns: `PoolingHead`: which hidden states it takes, its layers, and how checkpoints name their tensors.
Never does: read a configuration (`core_runtime.models.families.class_heads` does) or hold weights
(`core_runtime.models.vector_head` does).
Called by: `DecoderSpec`, the map of weights, the loading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from core.api.pooling import PoolingKind
from core_runtime.specs.mixer_parts import NormTensor


class HeadLayer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer: norm(activation(W x + b)).

    name: of its matrix, in canonical names.
    shape: outputs and inputs.
    bias: whether there is one.
    activation: `tanh`, or a name of `core_runtime.layers.activations`; empty: none.
    norm: behind the activation, or None.
    source: a regular expression for the matrix's module in a checkpoint.
    norm_source: the same of the norm; empty without one.
    """

    name: str
    shape: tuple[int, int]
    bias: bool = True
    activation: str = ""
    norm: NormTensor | None = None
    source: str = ""
    norm_source: str = ""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of what it reads."""
        found: dict[str, tuple[int, ...]] = {f"{self.name}.weight": self.shape}
        if self.bias:
            found[f"{self.name}.bias"] = (self.shape[0],)
        if self.norm is not None:
            found.update(self.norm.tensors())
        return found

    def modules(self) -> dict[str, str]:
        """The modules' names in a checkpoint, as regular expressions, and what they are here."""
        found = {self.source: self.name}
        if self.norm is not None:
            found[self.norm_source] = self.norm.name
        return found


class PoolingHead(msgspec.Struct, frozen=True, kw_only=True):
    """What makes numbers for classes from hidden states.

    kind: of which states; `all`: of each by itself.
    layers: in order; the last one has an output a class.
    """

    kind: PoolingKind
    layers: tuple[HeadLayer, ...]

    @property
    def num_labels(self) -> int:
        """Classes."""
        return self.layers[-1].shape[0]

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of everything that it reads, in canonical names."""
        found: dict[str, tuple[int, ...]] = {}
        for layer in self.layers:
            found.update(layer.tensors())
        return found

    def named(self, sources: Iterable[str]) -> dict[str, str]:
        """The tensors of a checkpoint that belong to the head, and their canonical names. sources: of all its tensors."""
        patterns: list[tuple[re.Pattern[str], str]] = []
        for layer in self.layers:
            for source, name in layer.modules().items():
                patterns.append((re.compile(rf"(?:{source})\.(?P<part>weight|bias)"), name))
        found: dict[str, str] = {}
        for tensor in sources:
            for pattern, name in patterns:
                match = pattern.fullmatch(tensor)
                if match is not None:
                    found[tensor] = f"{name}.{match['part']}"
        return found
