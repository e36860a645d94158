"""Adapters in the folders of one directory, each under the name of its folder.

Owns: `DirectoryResolver`; `below`, the check that a path lies in a directory. Never does: read an adapter. Called by: servers,
for names and for paths of requests.
"""

from __future__ import annotations

from pathlib import Path


def below(directory: str, path: str) -> str | None:
    """Return an absolute path below a directory; None for one that leads out of it, by `..` or by a link, or that no file
    can have.

    path: relative to the directory, or absolute.
    """
    try:
        base = Path(directory).resolve()
        real = (base / path).resolve()
    except (OSError, RuntimeError, ValueError):  # too long, links in a circle, a NUL
        return None
    return str(real) if real != base and real.is_relative_to(base) else None


class DirectoryResolver:
    """The resolver of one directory. directory: None: it finds nothing."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory

    def find(self, name: str) -> str | None:
        """Return the folder called `name`, as in `Resolver`."""
        if self._directory is None:
            return None
        try:
            path = None if name in (".", "..") or "/" in name else below(self._directory, name)
            return path if path is not None and Path(path).is_dir() else None
        except OSError:  # a folder that may not be read
            return None
