"""The files of sessions: one for each, so that sessions outlive the server, and several API processes share them.

Owns: their form, their directory and its permissions. Never does: decide what is kept, or trust a file. Called by: the
sessions of a server (`core_apis.sessions.service`), in threads.

Directory: `<root>/<digest of the tokenizer>/<digest of the tenant>/<digest of the name>.session`, for this user alone. A file
appears by a rename, complete or not at all, and nothing is locked.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import time
from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from core.api.errors import UNREADABLE
from core_frontend.sessions.turns import Turn

logger = logging.getLogger("core_apis")

FORMAT = 1
SUFFIX = ".session"
MAX_BYTES = 256 << 20
"""Size of a file above which it is not read. The sessions of a key have at most 32 MiB of tokens, but turns may have parents
that are in no session any more."""

Stamp = tuple[int, int, int]
"""What changes with every version of a file: its inode, its time and its size."""


class KeyTerms(msgspec.Struct, frozen=True):
    """Everything besides tokens that the keys of a session's blocks depend on; see `core.api.messages.EngineRequest`."""

    salt: str | None = None
    tenant: str = ""
    num_public_tokens: int = 0
    adapter: str = ""
    adapter_from: int = 0


class KeptTurn(msgspec.Struct, array_like=True):
    """A turn. parent: its index in the file, -1 for none. own: int32, little endian. The rest: see `Turn`."""

    parent: int
    kept: int
    own: bytes
    num_prompt: int
    characters: int
    digest: bytes
    special: bool


class KeptSession(msgspec.Struct):
    """A session. turns: with the parents that are in no session. shown: indices of its own. used: seconds since the epoch."""

    format: int
    name: str
    version: int
    created: int
    used: float
    turns: list[KeptTurn]
    shown: list[int]
    pinned: bool = False
    terms: KeyTerms = KeyTerms()


class SessionFiles:
    """The files of all tenants below `root`, of one tokenizer. Raises OSError when the directory cannot be used."""

    def __init__(self, root: str | Path, tokenizer: str) -> None:
        self.root = Path(root).expanduser() / blake2b(tokenizer.encode(), digest_size=16).hexdigest()
        _make_private(self.root)

    def stamp(self, tenant: str, name: str) -> Stamp | None:
        """Return the stamp of a session's file; None if there is none."""
        return _stamp(self._path(tenant, name))

    def load(self, tenant: str, name: str) -> KeptSession | None:
        """Return a session; None if there is none. A damaged file is left out with a warning."""
        return _read(self._path(tenant, name))

    def all(self, tenant: str, known: Mapping[str, Stamp]) -> dict[str, tuple[Stamp, KeptSession | None]]:
        """Return the sessions of a tenant by name; None for one whose stamp is still the `known` one."""
        names = {self._path(tenant, name): name for name in known}
        found: dict[str, tuple[Stamp, KeptSession | None]] = {}
        with contextlib.suppress(FileNotFoundError):
            for path in self._directory(tenant).glob(f"*{SUFFIX}"):
                stamp, name = _stamp(path), names.get(path)
                if stamp is None:
                    continue
                if name is not None and known[name] == stamp:
                    found[name] = stamp, None
                elif (kept := _read(path)) is not None and path == self._path(tenant, kept.name):
                    found[kept.name] = stamp, kept
        return found

    def save(self, tenant: str, session: KeptSession) -> None:
        """Write a session. Raises OSError."""
        directory = self._directory(tenant)
        _make_private(directory)
        temporary = directory / f".{secrets.token_hex(8)}.tmp"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:
                file.write(msgspec.msgpack.encode(session))
            os.replace(temporary, self._path(tenant, session.name))
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def remove(self, tenant: str, name: str) -> None:
        """Delete a session's file, if there is one."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(tenant, name))

    def sweep(self, tenant: str, lifetime_s: float) -> None:
        """Delete what has not been written for `lifetime_s` seconds, temporary files of a crash included."""
        oldest = time.time() - lifetime_s
        with contextlib.suppress(OSError):
            for path in self._directory(tenant).iterdir():
                if path.lstat().st_mtime < oldest:
                    path.unlink()

    def _directory(self, tenant: str) -> Path:
        return self.root / blake2b(tenant.encode(), digest_size=16).hexdigest()

    def _path(self, tenant: str, name: str) -> Path:
        return self._directory(tenant) / f"{blake2b(name.encode(), digest_size=16).hexdigest()}{SUFFIX}"


def packed(turns: Sequence[Turn]) -> tuple[list[KeptTurn], list[int]]:
    """Return turns with their parents, each after its parent, and the indices of the given ones."""
    places: dict[int, int] = {}
    kept: list[KeptTurn] = []
    for turn in turns:
        chain: list[Turn] = []
        at: Turn | None = turn
        while at is not None and id(at) not in places:
            chain.append(at)
            at = at.parent
        for each in reversed(chain):
            places[id(each)] = len(kept)
            parent = -1 if each.parent is None else places[id(each.parent)]
            kept.append(
                KeptTurn(
                    parent, each.kept, each.own.tobytes(), each.num_prompt, each.characters, each.digest, each.special
                )
            )
    return kept, [places[id(turn)] for turn in turns]


def unpacked(session: KeptSession) -> list[Turn]:
    """Return the turns of a file. Raises ValueError for what `packed` cannot have written."""
    turns: list[Turn] = []
    for each in session.turns:
        if not -1 <= each.parent < len(turns):
            raise ValueError(f"a turn names turn {each.parent} as its parent")
        parent = None if each.parent < 0 else turns[each.parent]
        own = array("i")
        own.frombytes(each.own)
        most = 0 if parent is None else parent.num_tokens
        if not (0 <= each.kept <= most and 0 < each.num_prompt <= each.kept + len(own) and min(own, default=0) >= 0):
            raise ValueError("the numbers of a turn contradict each other")
        turns.append(Turn(parent, each.kept, own, each.num_prompt, each.characters, each.digest, each.special))
    if not all(0 <= index < len(turns) for index in session.shown):
        raise ValueError("a turn is missing")
    return [turns[index] for index in session.shown]


def _stamp(path: Path) -> Stamp | None:
    with contextlib.suppress(OSError):
        status = path.lstat()
        return status.st_ino, status.st_mtime_ns, status.st_size
    return None


def _read(path: Path) -> KeptSession | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise ValueError("not a file that this user alone can write")
            if status.st_size > MAX_BYTES:
                raise ValueError(f"it has {status.st_size} bytes")
            found = msgspec.msgpack.decode(file.read(), type=KeptSession)
        if found.format != FORMAT:
            raise ValueError(f"its format is {found.format}, expected {FORMAT}")
        unpacked(found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, *UNREADABLE) as error:
        logger.warning("The session in %s is ignored: %s.", path, error)
        return None
    return found


def _make_private(path: Path) -> None:
    """Make a directory, with its parents, for this user alone. Raises OSError when others can write to it."""
    for each in (*reversed(path.parents), path):
        each.mkdir(mode=0o700, exist_ok=True)
    for each in (path, path.parent):
        status = each.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(f"{each} can be written by other users")
