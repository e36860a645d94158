"""Files of adapters: their tensors, and the identity of an adapter.

Owns: the reading of whole tensor files through the loaders that exist, and of tensors that were sent; the digest. Never does:
interpret a name.
Called by: the formats of adapters.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from core.api.errors import CheckpointError
from core_adapters.room import check_room
from core_adapters.sent import SentPlace, SentTensor
from core_loaders.pt.loader import PtLoader
from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.specs.checkpoint import CheckpointManifest, TokenizerSource
from core_runtime.weights.torch_files import read_tensors

DTYPES: Final = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types of tensors that are sent, by their names."""


def safetensors_of(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a safetensors file as views of one copy of it. Raises CheckpointError.

    Mapping and copying each of hundreds of small tensors takes twice as long.
    """
    check_room(str(path), path.stat().st_size)
    loader = SafetensorsLoader("eager")
    manifest = loader.resolve_tensors(str(path))
    return dict(loader.iter(manifest, list(manifest.tensors)))


def pickled_tensors_of(path: Path) -> dict[str, Tensor]:
    """Return a copy of all tensors of a file of `torch.save`, whose code is never run. Raises CheckpointError."""
    check_room(str(path), path.stat().st_size)
    tensors = {name: stored.info for name, stored in read_tensors(str(path), 0).items()}
    manifest = CheckpointManifest(str(path), "pt", [str(path)], tensors, {}, TokenizerSource())
    return {name: tensor.clone() for name, tensor in PtLoader().iter(manifest, list(tensors))}


def sent_tensors(place: SentPlace, tensors: Sequence[SentTensor], start: int) -> dict[str, Tensor]:
    """Return all tensors of an adapter that was sent as views of one copy of it. Raises CheckpointError.

    start: where in the file they begin.
    """
    assert place.file is not None, "only a place of this process is read"
    raw = torch.empty(place.offset + place.nbytes - start, dtype=torch.uint8)
    view = memoryview(raw.numpy())
    while view:
        count = os.preadv(place.file, [view], place.offset + place.nbytes - len(view))
        if not count:
            raise CheckpointError("The adapter that was sent is not in memory any more; send it again.")
        view = view[count:]
    found = {}
    for tensor in tensors:
        piece = raw[tensor.offset : tensor.offset + tensor.nbytes]
        found[tensor.name] = piece.view(DTYPES[tensor.dtype]).view(tensor.shape)
    return found


def digest_of(configuration: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of an adapter's configuration and tensors, in hexadecimal digits."""
    digest = hashlib.sha256(json.dumps(configuration, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy() if tensor.numel() else b"")
    return digest.hexdigest()
