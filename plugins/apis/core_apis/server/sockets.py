"""The listening socket and the TLS files, checked before anything slow starts.

Owns: binding, with readable errors. Never does: serve. Called by: `core_apis.server.launch`.
"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from core.api.errors import UserError
from core_apis.server.tls_refresh import tls_context
from core_config.served.server_config import ServerConfig


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to `host` and `port` (0: any free one), not yet listening.

    Raises UserError that names --host or --port.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise UserError(
            f"--host is '{host}', which cannot be resolved ({error}); expected a host name or address."
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Listening detects a port that another server has bound but does not serve yet.
        listener.listen(1)
    except OSError as error:
        listener.close()
        raise UserError(_bind_problem(host, port, error)) from None
    except OverflowError:
        listener.close()
        raise UserError(f"--port is {port}; expected a number from 0 to 65535.") from None
    return listener


def open_listener(server: ServerConfig) -> socket.socket:
    """Return the socket at which the server listens. Raises UserError."""
    return bind(server.host, server.port) if server.uds is None else bind_path(server.uds)


def close_listener(server: ServerConfig) -> None:
    """Remove the path of a unix socket, so that the next server does not find it."""
    if server.uds is not None:
        Path(server.uds).unlink(missing_ok=True)


def bind_path(path: str) -> socket.socket:
    """Return a unix socket bound to `path`, with the permissions that the umask leaves. A stale one is replaced.

    Raises UserError that names --uds.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_abandoned(path):
            os.unlink(path)
        listener.bind(path)
        listener.listen(1)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)  # the error for a path that is too long has no errno
        if error.errno == errno.EADDRINUSE:
            reason = "another server, or something that is no socket, is there"
        raise UserError(
            f"--uds is '{path}', where nobody can listen ({reason}); expected a path of at most 107 bytes for a new socket."
        ) from None
    return listener


def _is_abandoned(path: str) -> bool:
    """Whether a socket is there on which no process listens."""
    if not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == errno.ECONNREFUSED


def url(listener: socket.socket, server: ServerConfig) -> str:
    """Return the address to show to people, such as `http://127.0.0.1:8000`, or `unix:/run/core.sock`."""
    if server.uds is not None:
        return f"unix:{server.uds}"
    host, port = server.host or "0.0.0.0", listener.getsockname()[1]
    scheme = "https" if server.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_tls_files(server: ServerConfig) -> None:
    """Raise UserError unless no TLS file is given, or both can be used."""
    for flag, path in (("--ssl-keyfile", server.ssl_keyfile), ("--ssl-certfile", server.ssl_certfile)):
        if path is not None and not Path(path).is_file():
            raise UserError(f"{flag} is '{path}', which is not a file; expected a PEM file.")
    if server.ssl_keyfile and not server.ssl_certfile:
        raise UserError("--ssl-keyfile is set without --ssl-certfile; TLS needs the certificate too.")
    if server.ssl_certfile:
        tls_context(server)


def _bind_problem(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is in use; choose another one with --port, or stop what uses it."
    if error.errno == errno.EACCES:
        return f"Port {port} needs more rights than this process has; choose one from 1024 with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"--host is '{host}', which is no address of this machine; 127.0.0.1 serves it locally, 0.0.0.0 everywhere."
        )
    return f"Cannot listen on {host}:{port} ({error.strerror}); set --host and --port."
