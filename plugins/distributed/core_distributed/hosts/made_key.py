"""A secret that is made when an engine starts, for hosts that get it from what starts them.

Owns: the secret, and a file in memory through which the processes of this host read it. Never does: send it.
Called by: ranks that Ray or torchrun start.
"""

from __future__ import annotations

import os
import secrets

from core_supervision.link.anonymous_file import anonymous_file

SECRET_BYTES = 32


class MadeKey:
    """One secret in a file without a name, which is gone with this process. secret: None makes a new one.

    path: how this process and its children open the file, as they would open `--engine-key-file`.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self.secret = secrets.token_hex(SECRET_BYTES).encode() if secret is None else secret
        self._file = anonymous_file("core-key", 0)
        os.fchmod(self._file, 0o600)
        os.write(self._file, self.secret)
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        self._closed = False

    def close(self) -> None:
        """Free the memory; connections that exist stay. Does nothing when called again."""
        if not self._closed:
            self._closed = True
            os.close(self._file)
