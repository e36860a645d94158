"""The directory of an engine's socket, which only this user may enter.

Owns: where it lies and what may be in it. Never does: make or remove directories itself
(`core_supervision.link.own_directory` does). Called by: `EngineProcess`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from core.api.errors import UserError
from core_supervision.link.own_directory import Kind, OwnDirectory

SOCKET = "engine.sock"
KIND = Kind(prefix="core-", lock="engine.lock", files=frozenset({SOCKET}))
MAX_LENGTH = 80
"""Maximum length of the temporary directory, so that the socket's path fits the 107 bytes of a unix address."""


class SocketDirectory:
    """A new directory, locked until `remove` or the end of this process. Raises UserError where none can be made."""

    def __init__(self) -> None:
        base = _base()
        try:
            self._directory = OwnDirectory(KIND, base)
        except OSError as error:
            raise UserError(
                f"{base}: no directory for the engine's socket can be made here ({error.strerror}); "
                "expected a directory to write to. Set TMPDIR to another one."
            ) from None

    @property
    def path(self) -> Path:
        """Path of the directory."""
        return self._directory.path

    @property
    def address(self) -> str:
        """The address that the engine binds and to which clients connect."""
        return f"ipc://{self.path}/{SOCKET}"

    def remove(self) -> None:
        """Remove the directory; does nothing when it is gone."""
        self._directory.remove()


def _base() -> Path:
    base = tempfile.gettempdir()
    return Path("/tmp" if len(base) > MAX_LENGTH else base)
