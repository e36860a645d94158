"""Files and batches on the disk.

Owns: their directory, its permissions and limits, and the form of the records. Never does: run a batch, or know a request.
Called by: the service of batches, in threads.

Directory: `<root>/<digest of the owner>/`, for this user alone, with `<id>.json` for each record and `<id>.data` for the bytes
of a file. A record appears by a rename, complete or not at all. `<id>.cancel` asks whichever process runs a batch to end it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import msgspec

from core.api.errors import UNREADABLE, RequestError
from core_apis.protocol.batches import BatchObject, FileObject
from core_config.served.server_config import BatchSettings

MOST_FILES = 1000
MOST_BATCHES = 1000
"""Limits of the files and of the batches of one API key. For another batch, the oldest that has ended is forgotten."""
TEMPORARY_S = 24 * 3600.0
"""Seconds after which an upload that a dead server left is deleted."""

T = TypeVar("T", FileObject, BatchObject)


class Elsewhere(Protocol):
    """The files of owners at other servers of this machine."""

    def count(self, owner: str, used: int) -> int:
        """Tell the others how many bytes an owner has here; return those of the others."""


class BatchStore:
    """The files and batches of all owners. Raises OSError where other users can write to the directory.

    elsewhere: counts the files of each owner at other servers too; None: there are none.
    """

    def __init__(self, settings: BatchSettings, elsewhere: Elsewhere | None = None) -> None:
        self.settings = settings
        self.root = Path(settings.directory)
        self._elsewhere = elsewhere
        make_private(self.root)

    def owners(self) -> list[str]:
        """Return the directories of owners."""
        return [path.name for path in self.root.iterdir() if path.is_dir()]

    def path(self, owner: str, name: str, suffix: str) -> Path:
        """Return the path of a record or of its bytes. name: checked by `is_id`."""
        return self.root / owner / f"{name}{suffix}"

    # --- records ---

    def file(self, owner: str, name: str) -> FileObject | None:
        """Return the record of a file; None without one, or when it has expired."""
        found = self._read(owner, name, "file-", FileObject)
        if found is not None and found.expires_at is not None and found.expires_at <= time.time():
            self.remove_file(owner, name)
            return None
        return found

    def batch(self, owner: str, name: str) -> BatchObject | None:
        """Return the record of a batch; a request to cancel it shows in its status."""
        found = self._read(owner, name, "batch_", BatchObject)
        if found is not None and not found.has_ended:
            with suppress(OSError):
                found.cancelling_at = int(self.path(owner, name, ".cancel").stat().st_mtime)
                found.status = "cancelling"
        return found

    def files(self, owner: str) -> list[FileObject]:
        """Return the files of an owner, the newest first."""
        found = [self.file(owner, name) for name in self.names(owner, "file-")]
        return _newest_first([each for each in found if each is not None])

    def batches(self, owner: str) -> list[BatchObject]:
        """Return the batches of an owner, the newest first."""
        found = [self.batch(owner, name) for name in self.names(owner, "batch_")]
        return _newest_first([each for each in found if each is not None])

    def save(self, owner: str, record: FileObject | BatchObject) -> None:
        """Write a record. Raises OSError."""
        make_private(self.root / owner)
        draft = self.path(owner, secrets.token_hex(8), ".tmp")
        try:
            with private_file(draft) as file:
                file.write(msgspec.json.encode(record))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path(owner, record.id, ".json"))
        finally:
            draft.unlink(missing_ok=True)

    def add_batch(self, owner: str, batch: BatchObject) -> None:
        """Write a new batch. Raises RequestError (429) when too many run, OSError."""
        batches = self.batches(owner)
        ended = [each for each in batches if each.has_ended]
        if len(batches) >= MOST_BATCHES and not ended:
            raise RequestError(
                f"This API key has {len(batches)} batches that have not ended; wait for one, or cancel it.",
                status=429,
                code="too_many_batches",
                retry_after=60,
            )
        if len(batches) >= MOST_BATCHES:
            self.path(owner, ended[-1].id, ".json").unlink(missing_ok=True)
        self.save(owner, batch)

    def cancel(self, owner: str, name: str) -> None:
        """Ask whichever process runs a batch to end it. Raises OSError."""
        with suppress(FileExistsError):
            private_file(self.path(owner, name, ".cancel")).close()

    def end(self, owner: str, batch: BatchObject) -> None:
        """Write the last version of a batch, and delete what its run needed. Raises OSError."""
        self.save(owner, batch)
        for suffix in (".cancel", ".partial"):
            self.path(owner, batch.id, suffix).unlink(missing_ok=True)

    def remove_file(self, owner: str, name: str) -> None:
        """Delete a file, its record first: without one it does not exist."""
        for suffix in (".json", ".data"):
            self.path(owner, name, suffix).unlink(missing_ok=True)
        if self._elsewhere is not None:
            self.room(owner)  # which tells it to other servers

    # --- bytes ---

    def draft(self, owner: str) -> tuple[Path, BinaryIO]:
        """Open a new file for an upload. Raises RequestError for an owner with too many files, OSError."""
        make_private(self.root / owner)
        self.sweep(owner)
        if len(self.names(owner, "file-")) >= MOST_FILES:
            raise RequestError(f"This API key has {MOST_FILES} files already; delete one.", code="too_many_files")
        path = self.path(owner, secrets.token_hex(8), ".tmp")
        return path, private_file(path)

    def room(self, owner: str) -> int:
        """Return how many bytes the owner's files may still take, here and at other servers."""
        used = self.used(owner)
        others = 0 if self._elsewhere is None else self._elsewhere.count(owner, used)
        return self.settings.max_bytes - used - others

    def used(self, owner: str) -> int:
        """Return the bytes of an owner's files here."""
        used = 0
        with suppress(FileNotFoundError), os.scandir(self.root / owner) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    used += entry.stat(follow_symlinks=False).st_size
        return used

    def keep(self, owner: str, draft: Path, record: FileObject) -> None:
        """Make a written draft the bytes of a file. Raises OSError."""
        draft.replace(self.path(owner, record.id, ".data"))
        self.save(owner, record)

    def sweep(self, owner: str) -> None:
        """Delete drafts that a dead server left."""
        for path in (self.root / owner).glob("*.tmp"):
            with suppress(OSError):
                if path.lstat().st_mtime < time.time() - TEMPORARY_S:
                    path.unlink()

    def names(self, owner: str, prefix: str) -> list[str]:
        """Return the ids of an owner's records, without reading them."""
        with suppress(FileNotFoundError):
            return [path.stem for path in (self.root / owner).glob(f"{prefix}*.json")]
        return []

    def _read(self, owner: str, name: str, prefix: str, form: type[T]) -> T | None:
        if not is_id(name, prefix):
            return None
        try:
            descriptor = os.open(self.path(owner, name, ".json"), os.O_RDONLY | os.O_NOFOLLOW)
            with open(descriptor, "rb") as file:
                return msgspec.json.decode(file.read(1 << 20), type=form)
        except (OSError, *UNREADABLE):
            return None


def owner_of(tenant: str) -> str:
    """Return the directory of a tenant, whose name is that of its prefixes."""
    return blake2b(tenant.encode(), digest_size=16).hexdigest()


def new_id(prefix: str) -> str:
    """Return a new id, `file-` or `batch_` and 24 digits."""
    return prefix + secrets.token_hex(12)


def is_id(name: str, prefix: str) -> bool:
    """Whether a name has the form of an id, so that it is safe in a path."""
    digits = name.removeprefix(prefix)
    return len(name) == len(prefix) + 24 == len(digits) + len(prefix) and all(
        each in "0123456789abcdef" for each in digits
    )


def make_private(path: Path) -> None:
    """Make a directory for this user alone. Raises OSError for one that others can write to."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} can be written by other users")


def private_file(path: Path) -> BinaryIO:
    """Create a file that this user alone can read. Raises OSError, also for one that is there."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    return open(descriptor, "w+b")


def pages(items: list[T], after: str | None, limit: int) -> Iterator[T]:
    """Yield at most `limit` items after the one with the id `after`. Raises RequestError if there is none."""
    start = 0
    if after is not None:
        ids = [item.id for item in items]
        if after not in ids:
            raise RequestError(f"after is {after!r}, which is not on this list.", param="after")
        start = ids.index(after) + 1
    yield from items[start : start + limit]


def _newest_first(records: list[T]) -> list[T]:
    return sorted(records, key=lambda record: (record.created_at, record.id), reverse=True)
