"""Index files of sharded checkpoints: the file of each tensor.

Owns: reading and checking them. Never does: read a weight. Called by: the safetensors and pt loaders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from core.api.errors import CheckpointError
from core_loaders.directory import read_json
from core_runtime.specs.checkpoint import TensorInfo
from core_tokens.checkpoint_files import MAX_INDEX


def read_index(path: Path) -> dict[str, str]:
    """Return the file of each tensor according to the index; empty without an index. Raises CheckpointError."""
    if not path.is_file():
        return {}
    weights = read_json(path, MAX_INDEX).get("weight_map")
    if not isinstance(weights, dict) or not weights or not all(_is_file_name(name) for name in weights.values()):
        raise CheckpointError(f"{path}: has no weight_map from tensors to file names.")
    return weights


def check_index(path: Path, index: Mapping[str, str], files: Sequence[Path], tensors: Mapping[str, TensorInfo]) -> None:
    """Check that each tensor is in the file that the index names. Raises CheckpointError."""
    for name, file in index.items():
        info = tensors.get(name)
        if info is None or files[info.file].name != file:
            raise CheckpointError(
                f"{path}: says that tensor '{name}' lies in {file}, which does not hold it. The index belongs to other "
                "files, or a file is damaged."
            )


def _is_file_name(name: object) -> bool:
    """Whether it is the name of a file in the same directory."""
    return isinstance(name, str) and Path(name).name == name
