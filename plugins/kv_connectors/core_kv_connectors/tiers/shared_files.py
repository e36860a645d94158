"""Page files in a directory that several engines share, as the KV connectors `file` and `shm`.

Owns: `SharedFiles`, the secret of its pages, and the directory in shared memory. Never does: lock anything: a page appears by
a rename, complete or not at all. Called by: the manifests of the connectors `file` and `shm`.

With a key file other users may write to the directory. Each page then carries a MAC, and lies in a subdirectory that the
secret determines, so that engines with another key, or none, neither read nor delete it as damaged.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from core.api.config import EngineConfig
from core.api.errors import ConfigError
from core.plugin.hookspecs import LoadContext
from core_kv_connectors.tiers.disk import DiskTier
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.local import LocalTiers
from core_kv_connectors.tiers.page_memory import NewPage
from core_kv_connectors.tiers.slow_tier import SlowTier

ARGUMENT = "--kv-connectors-config"
SHARED_MEMORY = Path("/dev/shm")
MIN_KEY_BYTES = 32
MAX_KEY_BYTES = 4096


class SharedFiles(LocalTiers):
    """Pages in `directory`, at most `capacity` bytes of them, including those of other engines.

    name: of the connector, for messages.
    key_file: file with the secret of all engines that share the directory; None: it belongs to this user alone.
    fingerprint, page_bytes, new_page: as for `LocalTiers`.

    Raises ConfigError.
    """

    argument = "kv_connectors"

    def __init__(
        self,
        config: EngineConfig,
        fingerprint: Callable[[], str],
        page_bytes: int,
        new_page: NewPage | None = None,
        *,
        directory: str,
        capacity: int,
        key_file: str | None = None,
        name: str = "file",
    ) -> None:
        self._name = name
        kind = name.partition("#")[0]
        self.medium = kind.upper()
        self.places = (kind, kind)
        self._directory = Path(directory).expanduser()
        self._capacity = capacity
        self._secret = b"" if key_file is None else read_key(key_file)
        super().__init__(config, fingerprint, page_bytes, new_page)

    def _open_host(self, config: EngineConfig) -> HostTier | None:
        return None

    def _open_disk(self, config: EngineConfig, fingerprint: Callable[[], str]) -> SlowTier | None:
        if not config.cache.enable_prefix_caching:
            return None
        return DiskTier(
            self._directory,
            directory_name(fingerprint(), self._secret),
            self._capacity,
            self._page_bytes,
            argument=f"{ARGUMENT}.{self._name}.directory",
            secret=self._secret,
            new_page=self._new_page,
        )


def open_files(context: LoadContext, directory: str, *, key_file: str | None = None, name: str = "file") -> SharedFiles:
    """Build the connector of a manifest, whose arguments have `size` and `load_failure`. Raises ConfigError."""
    assert context.config is not None
    own = context.arguments
    made = SharedFiles(
        context.config,
        context.options["fingerprint"],
        context.options["page_bytes"],
        context.options.get("new_page"),
        directory=directory,
        capacity=int(own.size * (1 << 30)),
        key_file=key_file,
        name=name,
    )
    made.fails_loads = own.load_failure == "fail"
    return made


def directory_name(fingerprint: str, secret: bytes) -> str:
    """Return the 32 hex digits that name the directory of an engine's pages, and stand in their headers."""
    if not secret:
        return fingerprint
    return hashlib.blake2b(fingerprint.encode(), key=secret, digest_size=16).hexdigest()


def directory_in_memory() -> str:
    """Return this user's directory in shared memory. Raises ConfigError where the system has none."""
    if not SHARED_MEMORY.is_dir():
        raise ConfigError(
            [f"The KV connector 'shm': this system has no {SHARED_MEMORY}; give {ARGUMENT}.shm.directory."]
        )
    return str(SHARED_MEMORY / f"core-kv-{os.geteuid()}")


def read_key(path: str, said: str = f"{ARGUMENT}.file.key_file") -> bytes:
    """Return 32 bytes derived from the contents of a key file. said: the argument that names it. Raises ConfigError."""
    shown = f"{said} {path}"
    try:
        with Path(path).expanduser().open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(MAX_KEY_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError([f"{shown}: cannot be read ({error.strerror})."]) from error
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError([f"{shown}: not a regular file."])
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError([f"{shown}: other users may use it (mode {mode:03o}); run 'chmod 600 {path}'."])
    if not MIN_KEY_BYTES <= len(content) <= MAX_KEY_BYTES:
        expected = f"{MIN_KEY_BYTES} to {MAX_KEY_BYTES} that nobody can guess: openssl rand -hex 32 > {path}"
        raise ConfigError([f"{shown}: has {len(content)} bytes; expected {expected}"])
    return hashlib.sha256(b"core kv pages\0" + content).digest()
