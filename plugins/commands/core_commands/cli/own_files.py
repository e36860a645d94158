"""Files that a person names.

Owns: where such a file is, and writing it whole. Never does: know what is in it. Called by: the commands.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from core.api.errors import UserError


def own_path(name: str) -> Path:
    """The path that is meant, `~` spelled out. Raises UserError for an empty one, and for a home that nobody knows."""
    if not name:
        raise UserError("The name of a file is empty; write its path.")
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise UserError(f"{name}: there is no such home directory; write the whole path.") from None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file at once: readers see the old one or the new one. A pipe or a device is written as it is.

    Raises UserError; the old file is there then.
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
            with suppress(OSError):  # there may be none
                draft.unlink()
        raise UserError(f"{path}: cannot be written: {error.strerror}.") from None
