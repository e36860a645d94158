"""Loading of a checkpoint into a model of transformers with native kernels.

Owns: the destination of each tensor, and the check that none is left over or missing. Never does: know a file format
(loaders) or a packing (quantization methods). Called by: the model's instance, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from core.api.errors import CheckpointError
from core.api.specs import LayerSpec
from core_runtime.contracts import LinearKernel, Loader
from core_runtime.models.fallback.modules import put_embedding, put_linear
from core_runtime.models.fallback.shape import Shaped
from core_runtime.models.tensors.packing import Packing
from core_runtime.models.tensors.pending import Pending, pending_matrix
from core_runtime.models.tensors.progress import loading_bar
from core_runtime.specs.checkpoint import CheckpointManifest

UNREAD = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")
"""Name endings of buffers that old checkpoints store next to their weights. Their values follow from the
configuration.
"""


class ModuleLoading:
    """One loading of weights into a model.

    shaped: the model. The names of `manifest` are already the names of its modules, except for gathered tensors.
    packing: makes kernels.
    """

    def __init__(self, shaped: Shaped, manifest: CheckpointManifest, packing: Packing) -> None:
        self._model = shaped.model
        self._spec = shaped.spec
        self._names = shaped.names
        self._manifest = manifest
        self._packing = packing
        self._dtype = packing.activation_dtype
        self._device = packing.device
        # Stands in for every weight that a native kernel holds, so that no matrix is in memory twice.
        self._empty = nn.Parameter(torch.empty(0, dtype=self._dtype, device=self._device), requires_grad=False)
        self._gathered: dict[str, dict[str, Tensor]] = {}
        self._left: dict[str, int] = {}
        for target in shaped.names.gathered.values():
            self._left[target] = self._left.get(target, 0) + 1

    def run(self, loader: Loader, *, progress: bool = False) -> list[LinearKernel]:
        """Read every tensor once and return all kernels, the embedding first and the head last, where these are native.

        Raises CheckpointError when a tensor is missing, is unused, or has another shape.
        """
        spec = self._spec
        matrices: dict[str, Pending[LinearKernel]] = {}
        for part in spec.linears():
            matrices[part.name] = pending_matrix(self._packing, part)
        owners: dict[str, list[Pending[LinearKernel]]] = {}  # several matrices may share a tensor, such as a rotation
        for one in matrices.values():
            for name in one.missing:
                owners.setdefault(name, []).append(one)
        self._check_names(owners)
        self._read(loader, owners, progress=progress)
        for part in spec.linears():
            self._put(part, matrices[part.name].built)
        if spec.tied and spec.embedding_matrix is not None:
            head = self._model.get_output_embeddings()
            kernel = matrices[spec.embedding_matrix.name].built
            put_linear(head, kernel, self._empty, own_bias=True)
        self._check_filled()
        return [one.built for one in matrices.values()]

    def _put(self, part: LayerSpec, kernel: LinearKernel) -> None:
        module = self._model.get_submodule(part.name)
        if part.role == "embedding":
            put_embedding(module, kernel, self._empty)
        else:
            put_linear(module, kernel, self._empty)

    def _check_names(self, owners: Mapping[str, Any]) -> None:
        """Check that every tensor is used, and that every tensor needed is present or made of others."""
        present = set(self._manifest.tensors)
        made = self._names.targets()
        needed = set(owners) | set(self._spec.tensors)
        missing = sorted(needed - present - made)
        if missing:
            raise CheckpointError(
                f"{self._manifest.ref} has no tensor '{missing[0]}' (and {len(missing) - 1} more), which a "
                f"{self._spec.family} model of transformers needs."
            )
        ties = getattr(self._model, "all_tied_weights_keys", {})
        unread: list[str] = []
        for name in sorted(present - needed - set(self._names.gathered)):
            if name not in ties and not name.endswith(UNREAD):
                unread.append(name)
        if unread:
            raise CheckpointError(
                f"{self._manifest.ref} has a tensor '{unread[0]}' (and {len(unread) - 1} more) that no module of a "
                f"{self._spec.family} model of transformers takes; the checkpoint and its configuration do not "
                "belong together."
            )

    def _read(self, loader: Loader, owners: Mapping[str, list[Pending[LinearKernel]]], *, progress: bool) -> None:
        gathered = self._names.gathered
        wanted = [name for name in self._manifest.tensors if name in owners or name in self._spec.tensors]
        wanted += gathered
        with loading_bar(self._manifest, wanted, shown=progress) as bar:
            for name, tensor in loader.iter(self._manifest, wanted):
                if name in gathered:
                    self._gather(name, tensor, owners)
                else:
                    self._take(name, tensor, owners)
                bar.update(tensor.nbytes)

    def _check_filled(self) -> None:
        """Check that every tensor of the model has values."""
        for name, tensor in self._model.state_dict(keep_vars=True).items():
            if tensor.is_meta:
                raise CheckpointError(
                    f"{self._manifest.ref} leaves '{name}' of a {self._spec.family} model of transformers without values."
                )

    def _gather(self, name: str, tensor: Tensor, owners: Mapping[str, list[Pending[LinearKernel]]]) -> None:
        """Keep one of several gathered tensors. The last one to arrive triggers their conversion."""
        target = self._names.gathered[name]
        parts = self._gathered.setdefault(target, {})
        # A copy: the loader's tensor may lie in a mapped file, or in memory that the next tensor overwrites.
        parts[name] = tensor.to(self._dtype, copy=True)
        self._left[target] -= 1
        if self._left[target] > 0:
            return
        for own, made in self._names.convert(target, self._gathered.pop(target)).items():
            self._take(own, made, owners)

    def _take(self, name: str, tensor: Tensor, owners: Mapping[str, list[Pending[LinearKernel]]]) -> None:
        """Pass a tensor of the model to the kernel that waits for it, or store it in its module."""
        waiting = owners.get(name)
        if waiting is not None:
            for one in waiting:
                one.arrive(name, tensor)
            return
        shape = self._spec.tensors.get(name)
        if shape is None or tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"Tensor '{name}' of {self._manifest.ref} has shape {list(tensor.shape)}; the configuration says "
                f"{list(shape or ())}. The checkpoint and its configuration do not belong together."
            )
        prefix, _, own = name.rpartition(".")
        module = self._model.get_submodule(prefix)
        if own in module._parameters:
            empty = module._parameters[own]
            assert empty is not None
            value = tensor.to(self._device, empty.dtype, copy=True)
            module._parameters[own] = _loaded(value)
        else:
            empty_buffer = module._buffers[own]
            assert empty_buffer is not None
            module._buffers[own] = tensor.to(self._device, empty_buffer.dtype, copy=True)


def _loaded(value: Tensor) -> nn.Parameter:
    """Return a parameter that transformers' initialization leaves unchanged."""
    parameter = nn.Parameter(value, requires_grad=False)
    parameter._is_hf_initialized = True
    return parameter
