"""The secret of the sockets between machines, and the encryption by it.

Owns: the reading of a key file, the addresses that need one, and how a socket uses it. Never does: make a socket.
Called by: API server and engine server, the ranks of several machines, and the configuration.

Both ends derive the same key pair from the secret, so each proves to the other that it has it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import stat
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from core.api.errors import ConfigError

LEAST_CHARACTERS = 32
MOST_BYTES = 4096


def is_loopback(address: str) -> bool:
    """Whether an address is reachable from this machine only. Among host names only `localhost` counts."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def read_secret(path: str) -> bytes:
    """Return 32 bytes derived from the contents of the file. Raises ConfigError."""
    shown = f"--engine-key-file {path}"
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(MOST_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError([f"{shown}: cannot be read: {error.strerror}."]) from None
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError([f"{shown}: is no file."])
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError([f"{shown}: others may use it (mode {mode:03o}); take their rights away: chmod 600 {path}"])
    if not LEAST_CHARACTERS <= len(text) <= MOST_BYTES:
        raise ConfigError(
            [
                f"{shown}: has {len(text)} characters; expected {LEAST_CHARACTERS} to {MOST_BYTES} that nobody can guess: "
                f"openssl rand -hex 32 > {path}"
            ]
        )
    return hashlib.sha256(b"core engine link\0" + text).digest()


def protect(socket: zmq.Socket[Any], secret: bytes, *, listens: bool) -> OneKey:
    """Encrypt a socket before it is bound or connected. Returns what its authenticator accepts, if it listens."""
    private = z85.encode(secret)
    public = zmq.curve_public(private)
    socket.curve_secretkey = private
    socket.curve_publickey = public
    if listens:
        socket.curve_server = True
    else:
        socket.curve_serverkey = public
    return OneKey(public)


class OneKey:
    """A credentials provider for an authenticator: the one key that may connect."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a peer with this key may connect."""
        return key == self._public


def url(address: str, port: int) -> str:
    """Return an address and a port as sockets take them."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"
