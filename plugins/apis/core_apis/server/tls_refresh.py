"""The TLS files of a server: the context made of them, and their change while the server runs.

Owns: `tls_context`, and `TlsRefresh`: detecting a change, and the new context for later connections. Never does: touch
open connections. Called by: the launcher (checks), the HTTP server's clock.
"""

from __future__ import annotations

import logging
import os
import ssl

from core.api.errors import UserError
from core_config.served.server_config import ServerConfig

logger = logging.getLogger("core_apis")

Stamp = tuple[int, int, int]


def tls_context(server: ServerConfig) -> ssl.SSLContext:
    """Return the TLS context of connections. Raises UserError for files that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key, authorities = server.ssl_certfile or "", server.ssl_keyfile, server.ssl_ca_certs
    try:
        context.load_cert_chain(certificate, key, _no_password)
    except (ssl.SSLError, OSError) as error:
        raise UserError(
            f"--ssl-certfile '{certificate}' and --ssl-keyfile '{key}' cannot be used ({error}); expected PEM files that "
            "belong together."
        ) from None
    if server.ssl_ciphers is not None:
        try:
            context.set_ciphers(server.ssl_ciphers)
        except ssl.SSLError:
            raise UserError(
                f"--ssl-ciphers is '{server.ssl_ciphers}', which names no cipher that there is; expected OpenSSL's notation, "
                "such as 'ECDHE+AESGCM'; `openssl ciphers` lists them."
            ) from None
    context.verify_mode = ssl.VerifyMode(server.ssl_cert_reqs)
    if authorities is None:
        return context
    try:
        context.load_verify_locations(authorities)
    except (ssl.SSLError, OSError) as error:
        raise UserError(
            f"--ssl-ca-certs is '{authorities}', which cannot be used ({error}); expected a PEM file."
        ) from None
    return context


class TlsRefresh:
    """The renewal of one server's TLS context. context: of the server; new connections get the latest valid one.

    A context is replaced whole, because certificates of authorities cannot be removed from one that is in use.
    """

    def __init__(self, server: ServerConfig, context: ssl.SSLContext) -> None:
        self._server = server
        self._context = context
        self._stamps = self._look()

    def check(self) -> None:
        """Read the files again if they have changed. Files that cannot be used leave the old ones in effect."""
        stamps = self._look()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            latest = tls_context(self._server)
        except UserError as error:
            logger.error("The TLS files have changed, and the old ones stay: %s", error)
            return

        def hand_on(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            connection.context = latest

        self._context.sni_callback = hand_on
        logger.info("The TLS files have changed; new connections get the new ones.")

    def _look(self) -> list[Stamp | None]:
        server = self._server
        paths = (server.ssl_certfile, server.ssl_keyfile, server.ssl_ca_certs)
        return [_stamp(path) for path in paths if path is not None]


def _no_password() -> str:
    """Raise an error instead of asking for a password at the terminal, which would stop the server."""
    raise ssl.SSLError("the key is encrypted, and there is no way to give its password; store the key without one")


def _stamp(path: str) -> Stamp | None:
    """Return a file's modification time, size and inode number; None while it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
