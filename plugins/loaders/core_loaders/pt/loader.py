"""The loader of directories with config.json and torch's own files.

Owns: the list of weight files, and the conversion of their storages to tensors. Never does: unpickle: nothing in a file
is executed.
Called by: the engine's loading (`iter`), the command line (`resolve`, without torch).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from core.api.errors import CheckpointError
from core_loaders.directory import read_directory
from core_loaders.index import check_index, read_index
from core_loaders.mapped import Bytes, mapped_tensors, torch_dtype, view
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo
from core_runtime.weights.torch_files import StoredTensor, read_tensors
from core_tokens.checkpoint_files import inside

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "pytorch_model.bin.index.json"
ENDINGS = (".bin", ".pt", ".pth")
"""Extensions of weight files, in order of preference; files of one extension are one model."""
OF_TRAINING = ("training_args", "optimizer", "scheduler", "scaler", "rng_state", "random_states")
"""Prefixes of files that training leaves next to the weights."""


class PtLoader:
    """Loader plugin for torch's files."""

    def resolve(self, ref: str) -> CheckpointManifest:
        """Read the configuration and the description of each tensor; no torch, no weights. Raises CheckpointError."""
        directory = read_directory(ref)
        index = read_index(directory.path / INDEX)
        names = sorted(set(index.values())) if index else _names_of(directory.path)
        files = [inside(directory.path, name) for name in names]
        stored = _stored(files)
        tensors = {name: tensor.info for name, tensor in stored.items()}
        check_index(directory.path / INDEX, index, files, tensors)
        return directory.manifest(ref, "pt", files, tensors)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield views of the mapped files in the order of their storages. Raises CheckpointError."""
        stored = _stored([Path(file) for file in manifest.files])

        def make(data: Bytes, info: TensorInfo) -> Tensor:
            return _strided(data, info, stored)

        return mapped_tensors(manifest, reads, make=make)


def _names_of(directory: Path) -> list[str]:
    """Return the weight files, where no index names them."""
    names = sorted(path.name for path in directory.iterdir() if not path.name.startswith(OF_TRAINING))
    for ending in ENDINGS:
        found = [name for name in names if name.endswith(ending)]
        if found:
            return found
    raise CheckpointError(f"{directory}: there is no file with weights ({', '.join(ENDINGS)}) next to config.json.")


def _stored(files: Sequence[Path]) -> dict[str, StoredTensor]:
    """Return the tensors of all files. Raises CheckpointError, also for a name that is in two of them."""
    found: dict[str, StoredTensor] = {}
    for number, file in enumerate(files):
        for name, tensor in read_tensors(str(file), number).items():
            if name in found:
                raise CheckpointError(f"{file}: tensor '{name}' is also in {files[found[name].info.file].name}.")
            found[name] = tensor
    return found


def _strided(data: Bytes, info: TensorInfo, stored: Mapping[str, StoredTensor]) -> Tensor:
    """Return a view of the tensor with its strides. Raises CheckpointError when the file has changed."""
    tensor = stored.get(info.source)
    if tensor is None or msgspec.structs.replace(tensor.info, name=info.name) != info:
        raise CheckpointError(
            f"Tensor '{info.name}' is not as it was when its file was resolved; was the file changed?"
        )
    span = _span(info.shape, tensor.strides)
    itemsize = torch_dtype(info.dtype).itemsize
    flat = msgspec.structs.replace(info, shape=(span,), nbytes=span * itemsize)
    return view(data, flat).as_strided(info.shape, tensor.strides)


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from a tensor's first to its last."""
    if 0 in shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
