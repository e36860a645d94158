"""The layers that pooled vectors go through: to classes, or to vectors of another size.

Owns: these layers in float32 on the host, and their reading from files of their own. Never does: pool, or know a request.
Called by: the weight loading and the worker (they make one), the pooler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from core.api.block_spec import NormSpec
from core.api.errors import CheckpointError
from core.api.pooling import DenseModule
from core.api.pooling_head import PoolingHead
from core.layers.activations import activate

FILES = ("model.safetensors", "pytorch_model.bin")
"""Of a Dense module, the first one that is there."""


@dataclass(slots=True)
class VectorNorm:
    """weight, bias: float32 [N], or None. spec: the kind and its eps."""

    weight: Tensor | None
    bias: Tensor | None
    spec: NormSpec

    def __call__(self, row: Tensor) -> Tensor:
        """The normalized row [N]."""
        if self.spec.kind == "layer":
            return F.layer_norm(row, row.shape, self.weight, self.bias, self.spec.eps)
        return F.rms_norm(row, row.shape, self.weight, self.spec.eps)


@dataclass(slots=True)
class VectorLayer:
    """norm(activation(W x + b)).

    weight: float32 [outputs, inputs].
    bias: float32 [outputs], or None.
    activation: see `HeadLayer`.
    """

    weight: Tensor
    bias: Tensor | None = None
    activation: str = ""
    norm: VectorNorm | None = None

    def __call__(self, row: Tensor) -> Tensor:
        """[outputs] of a row [inputs]."""
        out = F.linear(row, self.weight, self.bias)
        if self.activation == "tanh":
            out = torch.tanh(out)
        elif self.activation:
            out = activate(out, self.activation)
        return out if self.norm is None else self.norm(out)


class VectorHead:
    """Layers one after the other."""

    def __init__(self, layers: Sequence[VectorLayer]) -> None:
        self.layers = list(layers)

    @property
    def nbytes(self) -> int:
        """Of the matrices."""
        return sum(layer.weight.nbytes for layer in self.layers)

    def __call__(self, rows: Tensor) -> Tensor:
        """float32 [R, outputs] of float32 rows [R, inputs]. Each row by itself: its bits do not depend on the others."""
        found = []
        for row in rows:
            out = row.clone()  # where a row lies may change the order of a library's sums
            for layer in self.layers:
                out = layer(out)
            found.append(out)
        return torch.stack(found)


def head_of(spec: PoolingHead, vectors: Mapping[str, Tensor], ref: str) -> VectorHead:
    """A checkpoint's own head. vectors: its tensors in float32, by canonical name. Raises CheckpointError.

    ref: the checkpoint, for people.
    """
    layers = []
    for layer in spec.layers:
        norm = None
        if layer.norm is not None:
            weight = vectors.get(f"{layer.norm.name}.weight")
            norm = VectorNorm(weight, vectors.get(f"{layer.norm.name}.bias"), layer.norm.spec)
        weight = vectors[f"{layer.name}.weight"]
        if tuple(weight.shape) != layer.shape:
            raise CheckpointError(
                f"{ref}: a layer of its head for classes has shape {list(weight.shape)}, expected {list(layer.shape)}; it "
                "may be packed, which is not served for heads."
            )
        bias = vectors[f"{layer.name}.bias"] if layer.bias else None
        layers.append(VectorLayer(weight, bias, layer.activation, norm))
    return VectorHead(layers)


def dense_head(modules: Sequence[DenseModule]) -> VectorHead:
    """The Dense modules of sentence-transformers' files. Raises CheckpointError."""
    layers = []
    for module in modules:
        tensors = _read(Path(module.directory))
        weight = tensors.get("linear.weight")
        bias = tensors.get("linear.bias") if module.bias else None
        if weight is None or tuple(weight.shape) != module.shape or (module.bias and bias is None):
            found = {name: list(tensor.shape) for name, tensor in tensors.items()}
            raise CheckpointError(
                f"{module.directory}: has the tensors {found}; expected linear.weight of shape {list(module.shape)}"
                f"{' and linear.bias' if module.bias else ''}."
            )
        layers.append(VectorLayer(weight, bias, module.activation))
    return VectorHead(layers)


def _read(directory: Path) -> dict[str, Tensor]:
    """The tensors of a module in float32."""
    paths = [directory / name for name in FILES if (directory / name).is_file()]
    if not paths:
        raise CheckpointError(f"{directory}: has no weights; expected {' or '.join(FILES)}.")
    path = paths[0]
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # few models have such files

            tensors = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever these libraries raise for a damaged file
        raise CheckpointError(f"{path}: cannot be read: {error}.") from error
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
