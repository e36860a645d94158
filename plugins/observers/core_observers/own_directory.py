"""Directories that observers write files to, which nobody else may read. Owns: their rights. Called by: these observers."""

from __future__ import annotations

import os
from pathlib import Path

from core.api.errors import UserError


def own_directory(flag: str, path: str) -> Path:
    """Return the directory, made if need be. flag: argument that names it. Raises UserError if it cannot be written or
    belongs to others.
    """
    directory = Path(path).expanduser()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = directory.stat()
    except OSError as error:
        raise UserError(f"{flag} {path}: {error.strerror}; give a directory that can be written.") from None
    if state.st_uid != os.geteuid() or state.st_mode & 0o077:
        raise UserError(f"{flag} {path}: others may enter it; give a directory of your own (chmod 700).")
    return directory
