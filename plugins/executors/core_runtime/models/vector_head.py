"""The head for pooled vectors: layers that map them to classes, or to vectors of another size.

Owns: these layers in float32 on the host, and the reading of their own files. Never does: pool, or know a request.
Called by: the weight loading and the worker (they make one), the pooler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from core.api.errors import CheckpointError
from core.api.pooling import DenseModule
from core_runtime.layers.activations import activate
from core_runtime.specs.block_spec import NormSpec
from core_runtime.specs.pooling_head import PoolingHead
from core_runtime.weights.torch_files import StoredTensor, read_tensors
from core_tokens.checkpoint_files import inside

FILES = ("model.safetensors", "pytorch_model.bin")
"""Files with the weights of a Dense module. The first one that exists is read."""
TENSORS = ("linear.weight", "linear.bias")
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(slots=True)
class VectorNorm:
    """A norm of one vector. weight, bias: float32 [N], or None. spec: the kind and its eps."""

    weight: Tensor | None
    bias: Tensor | None
    spec: NormSpec

    def __call__(self, row: Tensor) -> Tensor:
        """Return the normalized row [N]."""
        if self.spec.kind == "layer":
            return F.layer_norm(row, row.shape, self.weight, self.bias, self.spec.eps)
        return F.rms_norm(row, row.shape, self.weight, self.spec.eps)


@dataclass(slots=True)
class VectorLayer:
    """One layer of the head: norm(activation(W x + b)).

    weight: float32 [outputs, inputs].
    bias: float32 [outputs], or None.
    activation: see `HeadLayer`.
    """

    weight: Tensor
    bias: Tensor | None = None
    activation: str = ""
    norm: VectorNorm | None = None

    def __call__(self, row: Tensor) -> Tensor:
        """Return [outputs] of a row [inputs]."""
        out = F.linear(row, self.weight, self.bias)
        if self.activation == "tanh":
            out = torch.tanh(out)
        elif self.activation:
            out = activate(out, self.activation)
        return out if self.norm is None else self.norm(out)


class VectorHead:
    """A head for pooled vectors: layers that are applied one after another, in float32 on the host."""

    def __init__(self, layers: Sequence[VectorLayer]) -> None:
        self.layers = list(layers)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the matrices; biases and norms do not count."""
        return sum(layer.weight.nbytes for layer in self.layers)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return float32 [R, outputs] of float32 rows [R, inputs]. Rows are computed one at a time, so the bits of one
        do not depend on the others.
        """
        found = []
        for row in rows:
            out = row.clone()  # the alignment of a row may change the order of a library's sums
            for layer in self.layers:
                out = layer(out)
            found.append(out)
        return torch.stack(found)


def head_of(spec: PoolingHead, vectors: Mapping[str, Tensor], ref: str) -> VectorHead:
    """Return the head in a checkpoint. vectors: its tensors in float32, by canonical name. Raises CheckpointError.

    ref: name of the checkpoint in messages.
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
    """Return a head of the Dense modules in sentence-transformers' files. Raises CheckpointError."""
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
        layers.append(VectorLayer(weight.float(), None if bias is None else bias.float(), module.activation))
    return VectorHead(layers)


def _read(directory: Path) -> dict[str, Tensor]:
    """Return the tensors of a module, as they are stored."""
    names = [name for name in FILES if (directory / name).is_file()]
    if not names:
        raise CheckpointError(f"{directory}: has no weights; expected {' or '.join(FILES)}.")
    path = inside(directory, names[0])
    if path.suffix != ".safetensors":
        return {name: _stored(path, tensor) for name, tensor in read_tensors(str(path), 0).items() if name in TENSORS}
    try:
        from safetensors.torch import load_file  # imported here because few models have such files

        return load_file(path)
    except Exception as error:  # the library raises several types for a damaged file
        raise CheckpointError(f"{path}: cannot be read: {error}.") from error


def _stored(path: Path, stored: StoredTensor) -> Tensor:
    """Return one tensor of a file of torch.save."""
    info = stored.info
    dtype = FLOATS.get(info.dtype)
    if dtype is None:
        raise CheckpointError(f"{path}: tensor '{info.name}' has dtype {info.dtype}; expected {', '.join(FLOATS)}.")
    if 0 in info.shape:
        return torch.empty(info.shape, dtype=dtype)
    span = 1 + sum((length - 1) * stride for length, stride in zip(info.shape, stored.strides, strict=True))
    if math.prod(info.shape) > span:  # with strides of 0 a small file could claim any number of elements
        raise CheckpointError(f"{path}: the elements of tensor '{info.name}' lie on one another; expected all of them.")
    with path.open("rb") as file:
        file.seek(info.offset)
        flat = torch.frombuffer(bytearray(file.read(span * dtype.itemsize)), dtype=dtype)
    return flat.as_strided(info.shape, stored.strides)
