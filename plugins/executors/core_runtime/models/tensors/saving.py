"""Saving of a model's tensors as safetensors files, with one tensor in memory at a time.

Owns: the parts and their bytes. Never does: convert a value. Called by: `core save-sharded`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from core.api.errors import CheckpointError, UserError
from core_runtime.contracts import Loader
from core_runtime.models.tensors import shards
from core_runtime.models.tensors.new_directory import describe, new_directory
from core_runtime.models.tensors.progress import loading_bar
from core_runtime.specs.checkpoint import ITEM_BYTES, CheckpointManifest, TensorInfo

MAX_PART_BYTES = 5 << 30


def save_sharded(
    loader: Loader,
    manifest: CheckpointManifest,
    out: Path,
    *,
    pattern: str = shards.DEFAULT,
    max_bytes: int = MAX_PART_BYTES,
    progress: bool = False,
) -> int:
    """Write the model to the new directory `out` and return the number of its files with weights.

    pattern: names of these files. max_bytes: limit of tensor bytes in one file, unless a single tensor has more.
    Raises UserError for a pattern or a directory that cannot be used, CheckpointError for tensors that cannot be saved.
    """
    shards.check(pattern)
    if max_bytes < 1:
        raise UserError(f"--max-file-size {max_bytes}: expected at least 1.")
    _check_types(manifest)
    parts = _parts(manifest.tensors.values(), max_bytes)
    with new_directory(out) as directory:
        describe(directory, manifest)
        files: dict[str, _PartFile] = {}
        for number, infos in enumerate(parts):
            file = _PartFile(directory / shards.named(pattern, number), infos)
            files |= dict.fromkeys((info.name for info in infos), file)
        names = list(manifest.tensors)
        with loading_bar(manifest, names, shown=progress) as bar:
            for name, tensor in loader.iter(manifest, names):
                files[name].put(name, tensor)
                bar.update(tensor.nbytes)
    return len(parts)


def _check_types(manifest: CheckpointManifest) -> None:
    for info in manifest.tensors.values():
        if info.dtype not in ITEM_BYTES:
            raise CheckpointError(
                f"{manifest.ref}: tensor '{info.name}' has the packed type {info.dtype}, which safetensors files cannot "
                "hold; serve the file as it is."
            )


def _parts(tensors: Iterable[TensorInfo], max_bytes: int) -> list[list[TensorInfo]]:
    """Return the tensors of each part, in the order in which the source is read."""
    parts: list[list[TensorInfo]] = [[]]
    filled = 0
    for info in sorted(tensors, key=lambda info: (info.file, info.offset, info.name)):
        if parts[-1] and filled + info.nbytes > max_bytes:
            parts.append([])
            filled = 0
        parts[-1].append(info)
        filled += info.nbytes
    return parts


class _PartFile:
    """One file. Its header is written at once, its tensors as they arrive."""

    def __init__(self, path: Path, infos: Sequence[TensorInfo]) -> None:
        self._path = path
        self._infos = {info.name: info for info in infos}
        self._places: dict[str, int] = {}
        header: dict[str, Any] = {}
        end = 0
        for info in sorted(
            infos, key=lambda info: -ITEM_BYTES[info.dtype]
        ):  # largest items first, so that each tensor is aligned to its type
            header[info.name] = {
                "dtype": info.dtype,
                "shape": list(info.shape),
                "data_offsets": [end, end + info.nbytes],
            }
            self._places[info.name] = end
            end += info.nbytes
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        self._base = 8 + len(raw)
        with open(path, "wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            file.truncate(self._base + end)

    def put(self, name: str, tensor: Tensor) -> None:
        """Write one tensor to its place. Raises CheckpointError when it differs from the manifest."""
        info = self._infos[name]
        if tuple(tensor.shape) != info.shape or tensor.nbytes != info.nbytes:
            raise CheckpointError(
                f"tensor '{name}' came as {tensor.dtype} of shape {list(tensor.shape)}, though its file says {info.dtype} of "
                f"{list(info.shape)}; its loader converts it, so it cannot be saved as it is."
            )
        raw = tensor.contiguous().flatten().view(torch.uint8)
        with open(self._path, "r+b") as file:
            file.seek(self._base + self._places[name])
            file.write(memoryview(raw.numpy()))
