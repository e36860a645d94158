"""A module as a checkpoint stores it.

Owns: the tensors that belong to a module, and its name in the checkpoint. Never does: read a tensor.
Called by: the method (looks up parts), layouts (read one).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from core.api.specs import Role
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo

SHARED: Final = re.compile(r"_(input|output)\.(weight|perm)$")
"""Ends of names of tensors that a file has once for several modules: matrices of transforms."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One module as the checkpoint stores it.

    name: canonical name.
    own_name: name of the module in the checkpoint's files, which its declaration uses.
    shape: (N, K) of its matrix.
    tensors: tensors by suffix after the module's name, such as `qweight` or `weight.absmax`.
    role: role in the model.
    elsewhere: tensors of other modules by the last two words of their names, for those that modules share.
    """

    name: str
    own_name: str
    shape: tuple[int, int]
    tensors: Mapping[str, TensorInfo]
    role: Role = "linear"
    elsewhere: Mapping[str, tuple[TensorInfo, ...]] = field(default_factory=dict, repr=False, compare=False)

    def names(self, *suffixes: str) -> tuple[str, ...]:
        """Return the canonical names of those of these tensors that exist."""
        return tuple(f"{self.name}.{suffix}" for suffix in suffixes if suffix in self.tensors)

    def suffix(self, name: str) -> str:
        """Return the suffix after the module's name in the canonical name of one of its tensors."""
        return name.removeprefix(f"{self.name}.")


class StoredParts:
    """All modules of a checkpoint, looked up by canonical name."""

    def __init__(self, manifest: CheckpointManifest) -> None:
        self._tensors = manifest.tensors
        self._names = sorted(manifest.tensors)
        self._elsewhere: dict[str, tuple[TensorInfo, ...]] = {}
        for name in self._names:
            last = ".".join(name.rsplit(".", 2)[1:])
            if SHARED.search(last):
                info = msgspec.structs.replace(manifest.tensors[name], name=name)
                self._elsewhere[last] = (*self._elsewhere.get(last, ()), info)

    def find(self, name: str, shape: tuple[int, int], role: Role = "linear") -> StoredPart:
        """Return the module of a canonical name, with all tensors below it; without tensors when there is none."""
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
        return StoredPart(name, own_name, shape, tensors, role, self._elsewhere)


def _before(source: str, suffix: str) -> str:
    """Return the module's own name from that of its tensor. suffix: suffix of the tensor, whose last part may have
    another name there.
    """
    for _ in range(suffix.count(".") + 1):
        source = source.rpartition(".")[0]
    return source
