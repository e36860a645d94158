"""The cache folder: one numpy file per tensor, and `weights.json`, which records their sources.

Owns: the folder's layout, and the staleness check. Never does: replace a folder that it did not write.
Called by: the npcache loader.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from core.api.errors import CheckpointError
from core_loaders.directory import read_json
from core_tokens.checkpoint_files import MAX_INDEX, inside

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "np"
INDEX = "weights.json"
NUMPY_NAMES = {"bfloat16": "uint16"}
"""Types that numpy lacks are stored as integers of the same size; all other one-byte types as uint8."""


class Folder:
    """A complete cache folder.

    path: of the folder.
    files: each tensor's file and torch type.
    """

    def __init__(self, path: Path, files: dict[str, dict[str, str]]) -> None:
        self.path = path
        self._files = files

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """Map a tensor's array; changes to it stay in memory. Raises CheckpointError."""
        entry = self._files.get(name)
        file = None if entry is None else entry.get("file")
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"{self.path / INDEX}: names no file for tensor '{name}'. Remove the folder.")
        path = inside(self.path, file)
        try:
            array = np.load(path, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise CheckpointError(
                f"{path}: cannot be read as tensor '{name}' ({error}). Remove the folder; it is then written again."
            ) from None
        assert isinstance(array, np.ndarray)
        return array

    @staticmethod
    def write(sources: Sequence[Path], tensors: Iterable[tuple[str, Tensor]]) -> Folder:
        """Write the folder next to `sources`, under a temporary name until it is complete. Raises CheckpointError."""
        parent = sources[0].parent
        target = parent / FOLDER
        if target.exists() and not (target / INDEX).is_file():
            raise CheckpointError(
                f"{target}: is in the way of the cache of numpy files; move it, or use --load-format pt."
            )
        try:
            part = Path(tempfile.mkdtemp(prefix=f"{FOLDER}-", dir=parent))
        except OSError as error:
            raise _unwritable(parent, error) from None
        try:
            files = _write_arrays(part, tensors)
            content = {"sources": _facts(sources), "tensors": files}
            (part / INDEX).write_text(json.dumps(content, indent=1), encoding="utf-8")
            if target.exists():
                shutil.rmtree(target)
            os.rename(part, target)
        except OSError as error:
            raise _unwritable(target, error) from None
        finally:
            shutil.rmtree(part, ignore_errors=True)  # exists only when the rename did not happen
        return Folder(target, files)


def open_folder(sources: Sequence[Path]) -> Folder | None:
    """Open the folder next to `sources`; None when there is none, or when it was made from other files."""
    path = sources[0].parent / FOLDER
    if not (path / INDEX).is_file():
        return None
    content = read_json(inside(sources[0].parent, f"{FOLDER}/{INDEX}"), MAX_INDEX)
    files = content.get("tensors")
    if content.get("sources") != _facts(sources) or not isinstance(files, dict):
        return None
    return Folder(path, files)


def _write_arrays(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, dict[str, str]]:
    """Write one file per tensor, named by its number, because tensor names may contain anything."""
    import torch

    files: dict[str, dict[str, str]] = {}
    for number, (name, tensor) in enumerate(tensors):
        dtype = str(tensor.dtype).removeprefix("torch.")
        plain = tensor.contiguous()
        if dtype in NUMPY_NAMES:
            plain = plain.view(getattr(torch, NUMPY_NAMES[dtype]))
        elif plain.dtype.itemsize == 1 and plain.dtype is not torch.bool:
            plain = plain.view(torch.uint8)
        file = f"{number:05}.npy"
        np.save(folder / file, plain.numpy(), allow_pickle=False)
        files[name] = {"file": file, "dtype": dtype}
    return files


def _facts(sources: Sequence[Path]) -> dict[str, list[int]]:
    """Return the size and time of each file."""
    found: dict[str, list[int]] = {}
    for source in sources:
        status = source.stat()
        found[source.name] = [status.st_size, status.st_mtime_ns]
    return found


def _unwritable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{path}: the cache of numpy files cannot be written ({error.strerror}); use --load-format pt."
    )
