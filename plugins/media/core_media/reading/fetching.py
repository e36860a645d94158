"""Fetching of media that requests name by a URL.

Owns: which hosts and addresses may be reached, the limits of a transfer, and which local files may be read. Never does: use a
proxy, a cookie or a credential, or resolve a name twice. Called by: what prepares requests, in a thread.

A name is resolved once; every one of its addresses must be public, and the connection goes to one of these addresses. So a name
that resolves differently a moment later leads nowhere else. Each redirect is checked like the first URL.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from core.api.errors import RequestError
from core_media.config import MediaConfig

MAX_REDIRECTS: Final = 3
MAX_SECONDS: Final = 10.0
PIECE: Final = 64 * 1024
PORTS: Final = {"http": 80, "https": 443}
REDIRECTS: Final = (301, 302, 303, 307, 308)
OK: Final = 200
LONGEST_URL: Final = 8192
UNREADABLE: Final = "the file cannot be read, or does not lie where files may be read"

Resolve = Callable[[str, int], list[str]]


class Target(NamedTuple):
    """A checked URL. path: with its query."""

    scheme: str
    host: str
    port: int
    path: str


class Fetcher:
    """The fetcher of one server. resolve: returns the addresses of a host; for tests."""

    def __init__(self, config: MediaConfig, resolve: Resolve | None = None) -> None:
        self._config = config
        self._resolve = resolve or _addresses

    def fetch(self, url: str) -> tuple[bytes, str]:
        """Return the bytes behind a URL, and the type that its server declares. Raises RequestError."""
        if len(url) > LONGEST_URL:
            raise RequestError(f"the URL has {len(url)} characters; expected at most {LONGEST_URL}")
        if url[:5].lower() == "file:":
            return self._local(url), ""
        deadline = time.monotonic() + MAX_SECONDS
        for _ in range(MAX_REDIRECTS + 1):
            target = self._checked(url)
            try:
                answer = self._get(target, deadline)
            except (OSError, http.client.HTTPException) as error:
                raise RequestError(f"the host '{target.host}' gave no file ({type(error).__name__})") from error
            if isinstance(answer, tuple):
                return answer
            url = urljoin(url, answer)
        raise RequestError(f"the URL leads through more than {MAX_REDIRECTS} redirects")

    def _checked(self, url: str) -> Target:
        """Return the target of a URL to an allowed host. Raises RequestError."""
        parts, port = _split(url)
        scheme = parts.scheme.lower()
        host = (parts.hostname or "").rstrip(".").lower()
        if scheme not in PORTS:
            raise RequestError(f"the URL's scheme is {scheme[:20]!r}; expected data, http or https")
        if not self._config.domains:
            raise RequestError("this server fetches nothing (--allowed-media-domains); send a data URL")
        if "@" in parts.netloc:
            raise RequestError("the URL holds a user name; leave it out")
        if host not in self._config.domains:
            raise RequestError(
                f"the host {host[:200]!r} is none of those that this server fetches from; send a data URL"
            )
        if port is not None and port != PORTS[scheme]:
            raise RequestError(f"the URL's port is {port}; expected {PORTS[scheme]}")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not path.isascii():
            raise RequestError("the URL holds characters beyond ASCII; encode them")
        return Target(scheme, host, PORTS[scheme], path)

    def _address(self, target: Target) -> str:
        """Return an address of a host, all of whose addresses are public. Raises RequestError, OSError."""
        found = self._resolve(target.host, target.port)
        if not found or not all(map(is_public, found)):
            raise RequestError(f"the host '{target.host}' has an address that is not public")
        return found[0]

    def _get(self, target: Target, deadline: float) -> tuple[bytes, str] | str:
        """Return the body and its type, or the place of a redirect. Raises RequestError, OSError, HTTPException."""
        address = self._address(target)
        raw = socket.create_connection((address, target.port), timeout=_left(deadline))
        try:
            if target.scheme == "https":
                raw = ssl.create_default_context().wrap_socket(raw, server_hostname=target.host)
            connection = http.client.HTTPConnection(target.host, target.port)
            connection.sock = raw
            headers = {"Accept": "image/*", "User-Agent": "core", "Connection": "close"}
            connection.request("GET", target.path, headers=headers)
            with connection.getresponse() as response:
                if response.status in REDIRECTS:
                    return response.getheader("Location") or ""
                if response.status != OK:
                    raise RequestError(f"the host '{target.host}' answered with status {response.status}")
                return self._body(response, raw, deadline), response.getheader("Content-Type") or ""
        finally:
            raw.close()

    def _body(self, response: http.client.HTTPResponse, raw: socket.socket, deadline: float) -> bytes:
        """Read a body within the limits of time and size. Raises RequestError, OSError."""
        pieces: list[bytes] = []
        size = 0
        while True:
            raw.settimeout(_left(deadline))
            piece = response.read1(PIECE)
            if not piece:
                return b"".join(pieces)
            size += len(piece)
            if size > self._config.max_bytes:
                raise RequestError(f"the file has more than {self._config.max_bytes} bytes")
            pieces.append(piece)

    def _local(self, url: str) -> bytes:
        """Read a file below the allowed directory, without following a link out of it. Raises RequestError."""
        root = self._config.local_path
        if not root:
            raise RequestError("this server reads no files (--allowed-local-media-path); send a data URL")
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise RequestError("the URL of a file names a host; expected file:///path")
        try:
            resolved = Path(unquote(parts.path)).resolve(strict=True)
            # Opened without following a last link, so that a file exchanged for one in between is refused.
            descriptor = os.open(resolved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, ValueError):
            raise RequestError(UNREADABLE) from None
        try:
            facts = os.fstat(descriptor)
            opened = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if not opened.is_relative_to(root) or not stat.S_ISREG(facts.st_mode):
                raise RequestError(UNREADABLE)
            if facts.st_size > self._config.max_bytes:
                raise RequestError(f"the file has more than {self._config.max_bytes} bytes")
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(self._config.max_bytes)
        finally:
            os.close(descriptor)


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet, also where it carries an address of IPv4."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        if inner is not None and not is_public(str(inner)):
            return False
        if found in NAT64:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
    return found.is_global and not found.is_multicast


NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def _addresses(host: str, port: int) -> list[str]:
    return [str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise RequestError(f"the host took longer than {MAX_SECONDS:g} s")
    return left


def _split(url: str) -> tuple[SplitResult, int | None]:
    """Return the parts of a URL, and its port if it has one. Raises RequestError for what is no plain URL."""
    if any(character <= " " or character == "\\" or ord(character) == 127 for character in url):
        raise RequestError("the URL holds a space, a backslash or a control character; encode it")
    try:
        parts = urlsplit(url)
        return parts, parts.port
    except ValueError:
        raise RequestError("the URL is not valid") from None
