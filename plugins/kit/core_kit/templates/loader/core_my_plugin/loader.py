"""The loader: names and shapes first, tensors one by one later. torch is imported only in `iter`."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from core.api.errors import CheckpointError
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo, TokenizerSource

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = {"float32": "F32", "float16": "F16"}


class Loader:
    """Implements `core_runtime.contracts.Loader`."""

    def resolve(self, ref: str) -> CheckpointManifest:
        """Read the configuration, and what each array is. Raises CheckpointError."""
        directory = Path(ref)
        archive = directory / "weights.npz"
        try:
            config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
            with np.load(archive) as arrays:
                tensors = {name: _info(name, arrays[name]) for name in arrays.files}
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"{directory}: not a numpy checkpoint: {error}.") from error
        tokenizer = TokenizerSource(directory=str(directory))
        generation = {"eos_token_id": config.get("eos_token_id")}
        return CheckpointManifest(ref, "npz", [str(archive)], tensors, config, tokenizer, generation)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) for each name in `reads`. Raises CheckpointError."""
        import torch

        with np.load(manifest.files[0]) as arrays:
            for name in dict.fromkeys(reads):
                info = manifest.tensors.get(name)
                if info is None:
                    raise CheckpointError(f"{manifest.ref}: there is no tensor '{name}'.")
                yield name, torch.from_numpy(arrays[info.source])


def _info(name: str, array: np.ndarray) -> TensorInfo:
    return TensorInfo(name, array.shape, DTYPES[str(array.dtype)], array.nbytes, 0, 0, name)
