"""The tensors that a call asks for, by the names that they have in the files.

Owns: that check and that order. Never does: read. Called by: loaders, once a reading.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.errors import CheckpointError, nearest
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo


def wanted_of(manifest: CheckpointManifest, reads: Sequence[str]) -> list[TensorInfo]:
    """The tensors of `reads`, each once, by file and offset. Raises CheckpointError for a name that is not there."""
    for name in reads:
        if name not in manifest.tensors:
            raise CheckpointError(f"{manifest.ref}: there is no tensor '{name}'.{nearest(name, manifest.tensors)}")
    wanted = [manifest.tensors[name] for name in set(reads)]
    wanted.sort(key=lambda info: (info.file, info.offset, info.name))
    return wanted


def names_by_source(wanted: Sequence[TensorInfo]) -> dict[str, list[str]]:
    """The names that are asked for, by the name in the file."""
    found: dict[str, list[str]] = {}
    for info in wanted:
        found.setdefault(info.source, []).append(info.name)
    return found
