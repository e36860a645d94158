"""The loader that copies torch's files once into numpy files, in the folder `np` next to them, and reads those later.

Owns: reading through the folder. Never does: read weights while resolving, or execute a pickle.
Called by: the engine's loading (`iter`), the command line (`resolve`, without torch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from core.api.errors import CheckpointError
from core_loaders.mapped import torch_dtype
from core_loaders.npcache.folder import Folder, open_folder
from core_loaders.pt.loader import PtLoader
from core_loaders.reads import wanted_of
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor


class NpcacheLoader:
    """Loader plugin with a numpy cache."""

    def __init__(self) -> None:
        self._source = PtLoader()

    def resolve(self, ref: str) -> CheckpointManifest:
        """Describe the contents of torch's files; no torch, no weights, and nothing is written. Raises CheckpointError."""
        manifest = self._source.resolve(ref)
        return msgspec.structs.replace(manifest, format="npcache")

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield mapped tensors of the folder, which is written first if missing. Raises CheckpointError."""
        wanted = wanted_of(manifest, reads)
        files = [Path(file) for file in manifest.files]
        folder = open_folder(files)
        if folder is None:
            complete = self._source.resolve(manifest.ref)
            folder = Folder.write(files, self._source.iter(complete, list(complete.tensors)))
        for info in wanted:
            yield info.name, _tensor(folder, info)


def _tensor(folder: Folder, info: TensorInfo) -> Tensor:
    """Return a tensor of the folder, mapped. Raises CheckpointError when it differs from the source's description."""
    import torch

    array = folder.array(info.source)
    raw = torch.from_numpy(array)
    dtype = torch_dtype(info.dtype)
    if tuple(array.shape) != info.shape or array.dtype.itemsize != dtype.itemsize:
        raise CheckpointError(
            f"{folder.path}: tensor '{info.name}' is {array.dtype} of shape {list(array.shape)} here, but {info.dtype} of "
            f"shape {list(info.shape)} in the checkpoint. Remove the folder; it is then written again."
        )
    return raw.view(dtype)
