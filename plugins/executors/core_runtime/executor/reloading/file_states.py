"""Detection of files that have changed.

Owns: the recorded state of a file, and the comparison. Never does: read one. Called by: code that reads weight files
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core.api.errors import CheckpointError
from core.api.weights import FileState


def file_states(files: Sequence[str]) -> tuple[FileState, ...]:
    """Return the current states (size, modification time) of files. Raises CheckpointError for an unreadable one."""
    states: list[FileState] = []
    for name in files:
        try:
            found = Path(name).stat()
        except OSError as error:
            raise CheckpointError(f"{name}: cannot be read ({error.strerror}).") from None
        states.append(FileState(name, found.st_size, found.st_mtime_ns))
    return tuple(states)


def known_states(files: Sequence[str]) -> tuple[FileState, ...]:
    """Return the states of those names that are files of this machine."""
    return file_states([name for name in files if Path(name).is_file()])


def check_unchanged(files: Sequence[FileState]) -> None:
    """Raise CheckpointError, naming the file, if one has changed since its state was recorded."""
    now = file_states([file.path for file in files])
    for before, after in zip(files, now, strict=True):
        if before != after:
            raise CheckpointError(
                f"{before.path}: has been changed since its weights were taken into use; update the weights again, and give "
                "each version a file of its own."
            )
