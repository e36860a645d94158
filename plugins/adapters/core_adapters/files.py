"""Files of adapters: their tensors, and the identity of an adapter.

Owns: the reading of whole tensor files through the loaders that exist, and the digest. Never does: interpret a name.
Called by: the formats of adapters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from core_loaders.pt.loader import PtLoader
from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.specs.checkpoint import CheckpointManifest, TokenizerSource
from core_runtime.weights.torch_files import read_tensors


def safetensors_of(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a safetensors file as views of one copy of it. Raises CheckpointError.

    Mapping and copying each of hundreds of small tensors takes twice as long.
    """
    loader = SafetensorsLoader("eager")
    manifest = loader.resolve_tensors(str(path))
    return dict(loader.iter(manifest, list(manifest.tensors)))


def pickled_tensors_of(path: Path) -> dict[str, Tensor]:
    """Return a copy of all tensors of a file of `torch.save`, whose code is never run. Raises CheckpointError."""
    tensors = {name: stored.info for name, stored in read_tensors(str(path), 0).items()}
    manifest = CheckpointManifest(str(path), "pt", [str(path)], tensors, {}, TokenizerSource())
    return {name: tensor.clone() for name, tensor in PtLoader().iter(manifest, list(tensors))}


def digest_of(configuration: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of an adapter's configuration and tensors, in hexadecimal digits."""
    digest = hashlib.sha256(json.dumps(configuration, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy() if tensor.numel() else b"")
    return digest.hexdigest()
