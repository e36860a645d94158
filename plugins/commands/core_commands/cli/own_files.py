"""Files whose paths a user gives.

Owns: the resolution of such a path, and atomic writing. Never does: know the content of a file. Called by: the commands.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from core.api.errors import UserError


def own_path(name: str) -> Path:
    """Return the path with `~` expanded. Raises UserError for an empty name, and for an unknown home directory."""
    if not name:
        raise UserError("The name of a file is empty; write its path.")
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise UserError(f"{name}: there is no such home directory; write the whole path.") from None


def check_place(name: str) -> Path:
    """Return the path of a file that is to be written after long work. Raises UserError where it could not be."""
    path = own_path(name)
    folder = path.absolute().parent
    if path.is_dir():
        raise UserError(f"{name}: cannot be written: it is a directory; name a file.")
    if not folder.is_dir():
        raise UserError(f"{name}: cannot be written: there is no directory {folder}.")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{name}: cannot be written: {folder} belongs to somebody else.")
    return path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see the old content or the new. A pipe or a device is written directly.

    Raises UserError, and then leaves the old file unchanged.
    """
    place = Path(os.path.realpath(path))
    is_special = os.path.exists(place) and not os.path.isfile(place)
    draft = place if is_special else Path(f"{place}.new")
    try:
        draft.write_bytes(data)
        if not is_special:
            draft.replace(place)
    except OSError as error:
        if not is_special:
            with suppress(OSError):  # The draft may not exist.
                draft.unlink()
        raise UserError(f"{path}: cannot be written: {error.strerror}.") from None
