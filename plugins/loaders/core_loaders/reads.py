"""Requested tensors by their names in the files.

Owns: the check of names and the order of reading. Never does: read. Called by: loaders, once per reading.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.errors import CheckpointError, nearest
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo


def wanted_of(manifest: CheckpointManifest, reads: Sequence[str]) -> list[TensorInfo]:
    """Return the tensors of `reads`, each once, by file and offset. Raises CheckpointError for an unknown name."""
    for name in reads:
        if name not in manifest.tensors:
            raise CheckpointError(f"{manifest.ref}: there is no tensor '{name}'.{nearest(name, manifest.tensors)}")
    wanted = [manifest.tensors[name] for name in set(reads)]
    wanted.sort(key=lambda info: (info.file, info.offset, info.name))
    return wanted


def names_by_source(wanted: Sequence[TensorInfo]) -> dict[str, list[str]]:
    """Return the requested names, by name in the file."""
    found: dict[str, list[str]] = {}
    for info in wanted:
        found.setdefault(info.source, []).append(info.name)
    return found
