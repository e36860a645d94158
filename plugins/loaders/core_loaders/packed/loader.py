"""The loader of directories written by `core convert`.

Owns: the conversion of an index to a manifest, and to tensors outside kernels. Never does: prepare a weight.
Called by: the engine's loading, the command line (`resolve`, without torch).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from core.api.errors import CheckpointError
from core_loaders.mapped import mapped_tensors
from core_runtime.models.tensors.prepared import DATA, PreparedWeights, read_index
from core_runtime.specs.checkpoint import CheckpointManifest

if TYPE_CHECKING:
    from torch import Tensor


class PackedLoader:
    """Loader plugin for converted directories, with `HasPrepared`. mapped: see `PreparedWeights`."""

    def __init__(self, *, mapped: bool = True) -> None:
        self._mapped = mapped

    def resolve(self, ref: str) -> CheckpointManifest:
        """Return the manifest of the converted model; no torch, no weights. Raises CheckpointError."""
        directory = _directory(ref)
        manifest = read_index(directory).manifest
        tokenizer = manifest.tokenizer
        if tokenizer.directory is not None:
            tokenizer = msgspec.structs.replace(tokenizer, directory=str(directory))
        return msgspec.structs.replace(manifest, ref=ref, files=[str(directory / DATA)], tokenizer=tokenizer)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield tensors stored unchanged in the data file. Raises CheckpointError, also for those inside kernels."""
        stored = set(read_index(_directory(manifest.ref)).stored)
        for name in reads:
            if name in manifest.tensors and name not in stored:
                raise CheckpointError(
                    f"{manifest.ref}: tensor '{name}' is only there as a part of a prepared kernel; use the checkpoint that "
                    "was converted."
                )
        return mapped_tensors(manifest, reads)

    def prepared(self, manifest: CheckpointManifest) -> PreparedWeights:
        """Return the prepared kernels. Raises CheckpointError."""
        directory = _directory(manifest.ref)
        return PreparedWeights(directory / DATA, read_index(directory), mapped=self._mapped)


def _directory(ref: str) -> Path:
    return Path(os.path.abspath(Path(ref).expanduser()))
