"""A module as a checkpoint stores it.

Owns: which tensors belong to a module, and under which name the checkpoint knows it. Never does: read a tensor.
Called by: the method (it finds parts), layouts (they look at one).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from core.api.specs import Role
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One module.

    name: canonical.
    own_name: of the module in the checkpoint's files, which its declaration talks about.
    shape: (N, K) of its matrix.
    tensors: by what follows the module's name, such as `qweight` or `weight.absmax`.
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

    def suffix(self, name: str) -> str:
        """What follows the module's name in the canonical name of one of its tensors."""
        return name.removeprefix(f"{self.name}.")


class StoredParts:
    """All modules of a checkpoint."""

    def __init__(self, manifest: CheckpointManifest) -> None:
        self._tensors = manifest.tensors
        self._names = sorted(manifest.tensors)

    def find(self, name: str, shape: tuple[int, int], role: Role = "linear") -> StoredPart:
        """The module of a canonical name, with all tensors below it; without tensors when there is none."""
        prefix = f"{name}."
        tensors: dict[str, TensorInfo] = {}
        own_name = name
        for index in range(bisect_left(self._names, prefix), len(self._names)):
            full = self._names[index]
            if not full.startswith(prefix):
                break
            info = self._tensors[full]
            suffix = full.removeprefix(prefix)
            tensors[suffix] = info
            own_name = _before(info.source, suffix)
        return StoredPart(name, own_name, shape, tensors, role)


def _before(source: str, suffix: str) -> str:
    """The module's own name, in that of its tensor. suffix: of the tensor; its last part may have another name there."""
    for _ in range(suffix.count(".") + 1):
        source = source.rpartition(".")[0]
    return source
