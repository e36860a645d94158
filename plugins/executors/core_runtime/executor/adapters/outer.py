"""The changes of an adapter outside of the model's blocks, as the model computes with them.

Owns: their preparation. Never does: read a file, or place them. Called by: the reading of adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from core.api.specs import LayerSpec
from core_runtime.contracts.low_rank import PackedLowRank
from core_runtime.executor.adapters.own_tensors import OwnTensors
from core_runtime.executor.adapters.placed import HEAD_KEY, PlacedAdapters
from core_runtime.executor.adapters.share import AdapterShare
from core_runtime.executor.adapters.updates import update_of
from core_runtime.layers.adapted_tokens import EmbeddingChange, HeadChange, TokenRows
from core_runtime.layers.kernels import KernelSet
from core_runtime.models.decoder_weights import DecoderWeights
from core_runtime.models.tensors.packing import DENSE_ACTIVATION, DTYPES
from core_runtime.models.vector_head import VectorHead, VectorLayer, VectorNorm
from core_runtime.weights.adapter_contents import ModuleChange
from core_runtime.weights.dense import Dense


class OuterChanges:
    """Prepares changes of embedding, output head and head for classes.

    kernels, dtype, device: those of the model. weights: the model's weights, without adapters.
    """

    def __init__(
        self, placed: PlacedAdapters, kernels: KernelSet, weights: DecoderWeights, dtype: str, device: torch.device
    ) -> None:
        self._placed = placed
        self._kernels = kernels
        self._weights = weights
        self._activation = DENSE_ACTIVATION[dtype]
        self.dtype = DTYPES[dtype]
        self.device = device

    def embedding(self, change: ModuleChange | None, part: LayerSpec, own: OwnTensors) -> EmbeddingChange | None:
        """Return the change of the embedding, or None. part: its matrix. own: reads it."""
        if change is None:
            return None
        dtype = self._placed.dtype
        gain = None
        if change.magnitude is not None and change.a is not None and change.b is not None:
            matrix = own([(part, ())])[f"{part.name}.weight"].T.clone()
            # The lengths are those of the columns: peft takes the embedding for the matrix of a layer, [E, V].
            matrix.addmm_(change.b.float(), change.a.float(), alpha=change.scale)
            gain = self._on_device(change.magnitude.float() / matrix.norm(dim=1), torch.float32)
        return EmbeddingChange(
            weight=None if change.weight is None else self._on_device(change.weight, self.dtype),
            tokens=self._tokens(change.tokens),
            a=None if change.a is None else self._on_device(change.a.T, dtype),
            b=None if change.b is None else self._on_device(change.b, dtype),
            scale=change.scale,
            gain=gain,
        )

    def head(
        self, change: ModuleChange | None, part: LayerSpec, own: OwnTensors, share: AdapterShare
    ) -> tuple[HeadChange | None, PackedLowRank | None]:
        """Return the change of a rank's rows of the output head, and its low-rank change; None for what there is not.

        part: the whole head's matrix. own: reads it, and its bias.
        """
        if change is None:
            return None, None
        kernel = None
        if change.weight is not None:
            matrix = Dense(self._on_device(share.rows_of_head(change.weight), self.dtype))
            bias = None
            if change.bias is not None:
                bias = self._on_device(share.rows_of_head(change.bias), torch.float32)
            kernel = self._kernels.linear(matrix, activation=self._activation, bias=bias)
        elif change.bias is not None and not part.bias:
            raise ValueError(f"it replaces the bias of {change.module} alone, which is tied to the embedding")
        packed = None
        bias = change.bias if change.weight is None else None
        if change.a is not None or bias is not None:
            needs_own = change.magnitude is not None or bias is not None
            tensors = own([(part, ())]) if needs_own else {}
            update = update_of(replace(change, bias=bias), part, 0, tensors, self._placed.dtype)
            packed = self._placed.tables[HEAD_KEY].pack([share.cut(update, share.local.head())])
        tokens = self._tokens(change.tokens)
        start = share.local.vocab_start
        return (None if kernel is None and tokens is None else HeadChange(kernel, tokens, start)), packed

    def classes(self, changes: Mapping[int, ModuleChange], norms: Mapping[int, ModuleChange]) -> VectorHead | None:
        """Return the head for classes with some layers changed; None if the adapter changes none.

        changes: of matrices, by number of the layer. norms: of the norms after them.
        """
        if not changes and not norms:
            return None
        own = self._weights.pooling_head
        assert own is not None, "a layer of the head was found"
        layers = list(own.layers)
        for number, change in changes.items():
            layers[number] = _changed_layer(layers[number], change)
        for number, change in norms.items():
            norm = layers[number].norm
            assert norm is not None, "a norm of the layer was found"
            layers[number] = replace(layers[number], norm=_changed_norm(norm, change))
        return VectorHead(layers)

    def _tokens(self, tokens: tuple[Tensor, Tensor] | None) -> TokenRows | None:
        """Return replaced rows in ascending order of their tokens, or None. tokens: their ids [n], and the rows [n, E]."""
        if tokens is None:
            return None
        ids, rows = tokens
        order = ids.argsort()
        return TokenRows(ids[order].to(self.device), self._on_device(rows[order], self.dtype))

    def _on_device(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        # A copy: a view would keep all that was read with it.
        return tensor.to(self.device, dtype, copy=True).contiguous()


def _changed_norm(norm: VectorNorm, change: ModuleChange) -> VectorNorm:
    """Return a norm of the head for classes with the weight and bias that the adapter has."""
    weight = norm.weight if change.weight is None else change.weight.to(torch.float32, copy=True)
    bias = norm.bias if change.bias is None else change.bias.to(torch.float32, copy=True)
    return replace(norm, weight=weight, bias=bias)


def _changed_layer(layer: VectorLayer, change: ModuleChange) -> VectorLayer:
    """Return a layer of the head for classes with the change added to its matrix, which is small."""
    weight = layer.weight if change.weight is None else change.weight.to(torch.float32, copy=True)
    bias = layer.bias if change.bias is None else change.bias.to(torch.float32, copy=True)
    if change.a is not None and change.b is not None:
        weight = weight + change.scale * (change.b.float() @ change.a.float())
    if change.added_bias is not None:
        more = change.scale * change.added_bias.float()
        bias = more if bias is None else bias + more
    if change.magnitude is not None:
        weight = weight * (change.magnitude.float() / weight.norm(dim=1)).unsqueeze(1)
    return replace(layer, weight=weight, bias=bias)
