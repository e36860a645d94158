"""A module as a checkpoint stores it.

Owns: which tensors belong to a module, and under which name the checkpoint knows it. Never does: read a tensor.
Called by: the method (it finds parts), layouts (they look at one).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.api.checkpoint import CheckpointManifest, TensorInfo
from core.api.specs import Role


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One module.

    name: canonical.
    own_name: of the module in the checkpoint's files, which its declaration talks about.
    shape: (N, K) of its matrix.
    tensors: by what follows the module's name, such as `qweight`.
    role: in the model.
    """

    name: str
    own_name: str
    shape: tuple[int, int]
    tensors: Mapping[str, TensorInfo]
    role: Role = "linear"

    def names(self, *suffixes: str) -> tuple[str, ...]:
        """Canonical names of those of these tensors that are there."""
        return tuple(f"{self.name}.{suffix}" for suffix in suffixes if suffix in self.tensors)


class StoredParts:
    """All modules of a checkpoint."""

    def __init__(self, manifest: CheckpointManifest) -> None:
        self._modules: dict[str, dict[str, TensorInfo]] = {}
        for name, info in manifest.tensors.items():
            module, _, suffix = name.rpartition(".")
            self._modules.setdefault(module, {})[suffix] = info

    def find(self, name: str, shape: tuple[int, int], role: Role = "linear") -> StoredPart:
        """The module of a canonical name; without tensors when there is none."""
        tensors = self._modules.get(name, {})
        own_name = name
        for info in tensors.values():
            own_name = info.source.rpartition(".")[0]
            break
        return StoredPart(name, own_name, shape, tensors, role)
