"""The shape of a classification head. Torch-free.

Owns: `PoolingHead`: the hidden states that it takes, its layers, and the names of their tensors in checkpoints.
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

    name: name of its matrix, in canonical names.
    shape: (outputs, inputs).
    bias: whether it has a bias.
    activation: `tanh`, or a name of `core_runtime.layers.activations`; empty: none.
    norm: norm after the activation, or None.
    source: regular expression for the matrix's module in a checkpoint.
    norm_source: regular expression for the norm's module; empty without one.
    """

    name: str
    shape: tuple[int, int]
    bias: bool = True
    activation: str = ""
    norm: NormTensor | None = None
    source: str = ""
    norm_source: str = ""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of its tensors."""
        found: dict[str, tuple[int, ...]] = {f"{self.name}.weight": self.shape}
        if self.bias:
            found[f"{self.name}.bias"] = (self.shape[0],)
        if self.norm is not None:
            found.update(self.norm.tensors())
        return found

    def modules(self) -> dict[str, str]:
        """Return regular expressions for its modules in a checkpoint, with their canonical names."""
        found = {self.source: self.name}
        if self.norm is not None:
            found[self.norm_source] = self.norm.name
        return found


class PoolingHead(msgspec.Struct, frozen=True, kw_only=True):
    """A head that computes class scores from hidden states.

    kind: pooling of the states; `all`: each state by itself.
    layers: layers in order; the last one has one output per class.
    """

    kind: PoolingKind
    layers: tuple[HeadLayer, ...]

    @property
    def num_labels(self) -> int:
        """Number of classes."""
        return self.layers[-1].shape[0]

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of all its tensors, in canonical names."""
        found: dict[str, tuple[int, ...]] = {}
        for layer in self.layers:
            found.update(layer.tensors())
        return found

    def named(self, sources: Iterable[str]) -> dict[str, str]:
        """Return the head's tensors in a checkpoint, with their canonical names. sources: names of all its tensors."""
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
