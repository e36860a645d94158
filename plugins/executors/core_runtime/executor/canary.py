"""The state that every step reads (weights and tables), as named tensors with short checksums.

Owns: finding the tensors of a model, and their checksums. Never does: decide what a checksum should be (the engine's
canary does). Called by: the worker, before a cache is bound to the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from core.own_packages import OWN

OURS = frozenset(OWN)
"""Packages whose objects are searched; objects of other packages are opaque."""
PIECE = 16 << 20
"""Bytes between two pauses, about a millisecond of work. Data on another device is copied to the host in such pieces.
"""


@dataclass(frozen=True, slots=True)
class State:
    """Tensors by the path of attributes that leads to them. Tensors that share memory are listed once."""

    tensors: Mapping[str, Tensor]

    @property
    def names(self) -> list[str]:
        """Names of all tensors, in order."""
        return list(self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def checksum(self, name: str) -> Iterator[str | None]:
        """Compute the checksum of one tensor: yield None after each piece, and the 128-bit XXH3 in hex at the end."""
        digest = xxhash.xxh3_128()
        flat = self.tensors[name].detach().contiguous().view(-1).view(torch.uint8)
        for piece in flat.split(PIECE):
            # The caller pauses between pieces, so that steps are not delayed by hashing a large tensor.
            digest.update(piece.cpu().numpy().data)
            yield None
        yield digest.hexdigest()


def state_of(roots: Mapping[str, object]) -> State:
    """Return all tensors that the objects hold, through their attributes, lists and dictionaries."""
    tensors: dict[str, Tensor] = {}
    held: set[tuple[int, int]] = set()
    for path, tensor in _walk(roots, "", set()):
        place = (tensor.data_ptr(), tensor.nbytes)
        # Tied weights and views of one buffer are reached by several paths; the first path names them.
        if tensor.nbytes == 0 or place in held:
            continue
        held.add(place)
        tensors[path] = tensor
    return State(tensors)


def _walk(value: object, path: str, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    parts = _parts(value)
    if parts is None or id(value) in seen:
        return
    seen.add(id(value))
    for name, part in parts:
        yield from _walk(part, f"{path}.{name}" if path else name, seen)


def _parts(value: object) -> list[tuple[str, object]] | None:
    """Return the named parts of a container or an object of ours; None for anything else."""
    if isinstance(value, Mapping):
        return [(str(key), part) for key, part in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | range):
        return [(str(index), part) for index, part in enumerate(value)]
    if type(value).__module__.partition(".")[0] not in OURS or isinstance(value, type):
        return None
    # `__slots__` names only the attributes of its own class, so all base classes are read.
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names += getattr(value, "__dict__", {})
    return [(name, getattr(value, name)) for name in sorted(set(names)) if hasattr(value, name)]
