"""Files that belong to a model's directory.

Owns: the rule about links. Never does: open a file. Called by: the loaders of directories.
"""

from __future__ import annotations

from pathlib import Path

from core.api.errors import CheckpointError


def inside(directory: Path, name: str) -> Path:
    """The file `name` of the directory. Raises CheckpointError for one that is not there, or that is a link out of it.

    The hub's cache keeps its files once, in `blobs`, and links to them from the directories of `snapshots`.
    """
    path = directory / name
    if not path.is_file():
        raise CheckpointError(f"{path}: is missing, or is no file. Is the download complete?")
    home = directory.resolve()
    real = path.resolve()
    if real.is_relative_to(home):
        return path
    for parent in home.parents:
        if parent.name == "snapshots" and real.is_relative_to(parent.parent / "blobs"):
            return path
    raise CheckpointError(
        f"{path}: is a link to {real}, out of the model's directory; copy the file, or name the directory it lies in."
    )
