"""Whether files are still as they were.

Owns: what of a file is remembered, and the comparison. Never does: read one. Called by: whoever needs files of weights again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core.api.errors import CheckpointError
from core.api.weights import FileState


def file_states(files: Sequence[str]) -> tuple[FileState, ...]:
    """The files as they are now. Raises CheckpointError."""
    states: list[FileState] = []
    for name in files:
        try:
            found = Path(name).stat()
        except OSError as error:
            raise CheckpointError(f"{name}: cannot be read ({error.strerror}).") from None
        states.append(FileState(name, found.st_size, found.st_mtime_ns))
    return tuple(states)


def known_states(files: Sequence[str]) -> tuple[FileState, ...]:
    """The same of those among them that are files of this machine."""
    return file_states([name for name in files if Path(name).is_file()])


def check_unchanged(files: Sequence[FileState]) -> None:
    """Raises CheckpointError naming a file that has been changed since."""
    now = file_states([file.path for file in files])
    for before, after in zip(files, now, strict=True):
        if before != after:
            raise CheckpointError(
                f"{before.path}: has been changed since its weights were taken into use; update the weights again, and give "
                "each version a file of its own."
            )
