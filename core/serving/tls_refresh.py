"""TLS files that change while the server runs.

Owns: `TlsRefresh`: noticing a change, and the new certificate for connections to come. Never does: touch open connections.
Called by: the HTTP server's clock.
"""

from __future__ import annotations

import logging
import os
import ssl

from core.api.config import ServerConfig

logger = logging.getLogger("core.serving")

Stamp = tuple[int, int, int]


class TlsRefresh:
    """context: of the server, which takes the new certificate. Files that cannot be used leave the old one in place."""

    def __init__(self, server: ServerConfig, context: ssl.SSLContext) -> None:
        self._context = context
        self._cert = server.ssl_certfile or ""
        self._key = server.ssl_keyfile
        self._authorities = server.ssl_ca_certs
        self._stamps = self._look()

    def check(self) -> None:
        """Read the files again when they have changed since the last time."""
        stamps = self._look()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            # First into another context: a key without its certificate would leave the server's own in pieces.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._cert, self._key)
            self._context.load_cert_chain(self._cert, self._key)
            if self._authorities is not None:
                self._context.load_verify_locations(self._authorities)
            logger.info("The TLS files have changed; new connections get the new certificate.")
        except (ssl.SSLError, OSError) as error:
            logger.error("The TLS files have changed, and the new ones cannot be used (%s); the old ones stay.", error)

    def _look(self) -> list[Stamp | None]:
        paths = (self._cert, self._key, self._authorities)
        return [_stamp(path) for path in paths if path is not None]


def _stamp(path: str) -> Stamp | None:
    """When a file was written, its size and number; None while it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
