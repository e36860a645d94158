"""The resolver. Names come from clients, so that only what looks like a name is searched for."""

from __future__ import annotations

import re
from pathlib import Path

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}/[a-z0-9][a-z0-9_-]{0,63}")


class Resolver:
    """Implements `core_adapters.resolvers.Resolver`. root: the folder with a folder for each team."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def find(self, name: str) -> str | None:
        """Return the folder TEAM/NAME if it is there."""
        if not NAME.fullmatch(name):
            return None
        path = self._root / name
        return str(path) if path.is_dir() else None
