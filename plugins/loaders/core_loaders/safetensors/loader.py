"""The loader of directories with config.json and safetensors files, one file or several.

Owns: the conversion of a directory to a manifest, and of a manifest to tensors. Never does: convert a value.
Called by: the engine's loading (`iter`), the command line (`resolve`, without torch).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from core.api.errors import CheckpointError
from core_loaders.directory import read_directory
from core_loaders.index import check_index, read_index
from core_loaders.mapped import mapped_tensors
from core_loaders.safetensors.header import read_all
from core_runtime.specs.checkpoint import CheckpointManifest, TokenizerSource
from core_tokens.checkpoint_files import inside

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SECOND_COPY = "consolidated"
"""Prefix of files that hold the same weights under Mistral's names, if other files are present."""


class SafetensorsLoader:
    """Loader plugin for safetensors. strategy: see `core_loaders.mapped`."""

    keeps_tensors = True

    def __init__(self, strategy: str | None = None) -> None:
        self._strategy = strategy

    def resolve(self, ref: str) -> CheckpointManifest:
        """Read configuration and headers; no torch, no weights. Raises CheckpointError."""
        directory = read_directory(ref)
        index = read_index(directory.path / INDEX)
        names = sorted(set(index.values())) if index else _names_of(directory.path)
        files = [inside(directory.path, name) for name in names]
        header = read_all(files)
        check_index(directory.path / INDEX, index, files, header.tensors)
        return directory.manifest(ref, "safetensors", files, header.tensors, header.metadata)

    def resolve_tensors(self, ref: str) -> CheckpointManifest:
        """Resolve the tensors of an update: the `ResolvesTensors` contract. Accepts a model directory, a directory of
        files only, or one file.
        """
        path = Path(ref)
        if path.is_dir() and (path / CONFIG).is_file():
            return self.resolve(ref)
        if path.is_dir():
            files = [inside(path, name) for name in _names_of(path)]
        elif path.is_file():
            files = [path]
        else:
            raise CheckpointError(f"{ref}: there is no such file or folder.")
        header = read_all(files)
        return CheckpointManifest(
            ref=ref,
            format="safetensors",
            files=[os.path.abspath(file) for file in files],
            tensors=header.tensors,
            config={},
            tokenizer=TokenizerSource(),
            metadata=header.metadata,
        )

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors file by file, in the order of their offsets. Raises CheckpointError."""
        return mapped_tensors(manifest, reads, self._strategy)


def _names_of(directory: Path) -> list[str]:
    """Return all weight files, where no index names them."""
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    first = [name for name in names if not name.startswith(SECOND_COPY)]
    if not names:
        raise CheckpointError(f"{directory}: there is no .safetensors file. Is the download complete?")
    return first or names
