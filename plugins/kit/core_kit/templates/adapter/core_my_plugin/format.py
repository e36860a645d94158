"""Adapters in a folder with two numpy files for each module: MODULE.a.npy [r, K] and MODULE.b.npy [N, r]."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from core.api.errors import UserError
from core_runtime.weights.adapter_contents import AdapterContents, ModuleChange


class NumpyFormat:
    """Implements `core_runtime.contracts.AdapterFormat`."""

    def claims(self, path: str) -> bool:
        """Whether the folder holds a matrix A."""
        return any(Path(path).glob("*.a.npy"))

    def read(self, path: str) -> AdapterContents:
        """Read all modules. Raises UserError when a file is missing or cannot be read."""
        digest = hashlib.sha256()
        changes = []
        for first in sorted(Path(path).glob("*.a.npy")):
            module = first.name.removesuffix(".a.npy")
            arrays = []
            for file in (first, first.with_name(f"{module}.b.npy")):
                try:
                    array = np.load(file, allow_pickle=False).astype(np.float32)
                except (OSError, ValueError) as error:
                    raise UserError(f"{file}: cannot be read: {error}.") from error
                digest.update(f"{file.name} {array.shape}".encode())
                digest.update(array.tobytes())
                arrays.append(torch.from_numpy(array))
            changes.append(ModuleChange(module, *arrays))
        if not changes:
            raise UserError(f"{path}: holds no adapter; expected files named MODULE.a.npy and MODULE.b.npy.")
        return AdapterContents(digest.hexdigest(), tuple(changes))
