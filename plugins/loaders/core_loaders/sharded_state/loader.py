"""The loader of directories written by `core save-sharded`: the tensors of one rank, in parts.

Owns: the list of the rank's files. Never does: convert a value, or read another rank's files.
Called by: the engine's loading (`iter`), the command line (`resolve`, without torch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from core.api.errors import CheckpointError
from core_loaders.directory import read_directory
from core_loaders.mapped import mapped_tensors
from core_loaders.safetensors.header import read_all
from core_runtime.models.tensors import shards
from core_runtime.specs.checkpoint import CheckpointManifest
from core_tokens.checkpoint_files import inside

if TYPE_CHECKING:
    from torch import Tensor


class ShardedStateLoader:
    """Loader plugin for saved ranks. pattern: of file names. strategy: see `core_loaders.mapped`."""

    def __init__(self, pattern: str = shards.DEFAULT, strategy: str | None = None) -> None:
        shards.check(pattern)
        self._pattern = pattern
        self._strategy = strategy

    def resolve(self, ref: str) -> CheckpointManifest:
        """Read configuration and headers; no torch, no weights. Raises CheckpointError."""
        directory = read_directory(ref)
        names = self._names(directory.path)
        files = [inside(directory.path, name) for name in names]
        return directory.manifest(ref, "sharded_state", files, read_all(files).tensors)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors part by part, in the order of their offsets. Raises CheckpointError."""
        return mapped_tensors(manifest, reads, self._strategy)

    def _names(self, directory: Path) -> list[str]:
        """Return the parts of the only rank, which have whole tensors. Raises CheckpointError."""
        ranks = shards.found(self._pattern, (path.name for path in directory.iterdir()))
        first = shards.named(self._pattern, 0)
        if not ranks:
            raise CheckpointError(f"{directory}: there is no {first}; core save-sharded writes such files.")
        if list(ranks) != [shards.RANK]:
            raise CheckpointError(
                f"{directory}: was saved by ranks {', '.join(map(str, sorted(ranks)))}, each of which has parts of tensors; "
                "save the model again with core save-sharded, whose files any number of ranks reads."
            )
        parts = ranks[shards.RANK]
        for number in range(max(parts) + 1):
            if number not in parts:
                missing = shards.named(self._pattern, number)
                raise CheckpointError(f"{directory / missing}: is missing. Is the download complete?")
        return [parts[number] for number in sorted(parts)]
