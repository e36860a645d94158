"""The loader of directories that `core convert` wrote.

Owns: the way from an index to a manifest, and to tensors that are in no kernel. Never does: prepare a weight.
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
from core_runtime.models.prepared import DATA, PreparedWeights, read_index
from core_runtime.specs.checkpoint import CheckpointManifest

if TYPE_CHECKING:
    from torch import Tensor


class PackedLoader:
    """Kind `loader`, with `HasPrepared`. mapped: see `PreparedWeights`."""

    def __init__(self, *, mapped: bool = False) -> None:
        self._mapped = mapped

    def resolve(self, ref: str) -> CheckpointManifest:
        """The manifest of the model that was converted; no torch, no weights. Raises CheckpointError."""
        directory = _directory(ref)
        manifest = read_index(directory).manifest
        tokenizer = manifest.tokenizer
        if tokenizer.directory is not None:
            tokenizer = msgspec.structs.replace(tokenizer, directory=str(directory))
        return msgspec.structs.replace(manifest, ref=ref, files=[str(directory / DATA)], tokenizer=tokenizer)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield tensors that lie in the data file as they are. Raises CheckpointError, also for those in kernels."""
        stored = set(read_index(_directory(manifest.ref)).stored)
        for name in reads:
            if name in manifest.tensors and name not in stored:
                raise CheckpointError(
                    f"{manifest.ref}: tensor '{name}' is only there as a part of a prepared kernel; use the checkpoint that "
                    "was converted."
                )
        return mapped_tensors(manifest, reads)

    def prepared(self, manifest: CheckpointManifest) -> PreparedWeights:
        """The kernels. Raises CheckpointError."""
        directory = _directory(manifest.ref)
        return PreparedWeights(directory / DATA, read_index(directory), mapped=self._mapped)


def _directory(ref: str) -> Path:
    return Path(os.path.abspath(Path(ref).expanduser()))
