"""The page files below a directory of `--kv-offloading-disk-path`.

Owns: listing them by fingerprint, checking each, deleting them. Never does: trust a name or a link (the page directory
checks those), or create anything. Called by: `core kv list | verify | clear`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import msgspec

from core.api.errors import UNREADABLE, UserError
from core_kv_connectors.tiers.page_directory import PageDirectory, StoredPage, UnsafeDirectoryError
from core_kv_connectors.tiers.page_file import MAC_BYTES, MAGIC, MAX_HEADER, PageHeader, has_checksum

_FINGERPRINT = re.compile("[0-9a-f]{32}")


class Pages(NamedTuple):
    """The pages of one fingerprint. used: when one was last written or read, in seconds of the wall clock."""

    fingerprint: str
    num_pages: int
    num_bytes: int
    used: float


class PageFiles:
    """The page files below `root`.

    secret: with which pages carry a MAC, and others may write to the directory (see `SharedFiles`); empty: neither.
    Raises UserError when it cannot be read, or others may write to it and there is no secret.
    """

    def __init__(self, root: str, secret: bytes = b"") -> None:
        self.root = Path(root).expanduser()
        self._secret = secret
        try:
            names = sorted(entry.name for entry in self.root.iterdir() if _FINGERPRINT.fullmatch(entry.name))
            self._directories = {name: PageDirectory(self.root, name, is_shared=bool(secret)) for name in names}
        except UnsafeDirectoryError as error:
            raise UserError(f"{error}.") from None
        except OSError as error:
            raise UserError(f"{root}: {error.strerror or error}; expected a --kv-offloading-disk-path.") from None

    def all(self) -> list[StoredPage]:
        """Return all pages."""
        return next((directory.all_pages() for directory in self._directories.values()), [])

    def by_fingerprint(self) -> list[Pages]:
        """Return the pages of each fingerprint."""
        found: dict[str, list[StoredPage]] = {name: [] for name in self._directories}
        for page in self.all():
            found.setdefault(page.path.partition("/")[0], []).append(page)
        return [
            Pages(name, len(pages), sum(page.size for page in pages), max((page.used for page in pages), default=0.0))
            for name, pages in found.items()
        ]

    def damaged(self) -> Iterator[tuple[str, str]]:
        """Yield the path of each page that would not be used, and why. Reads all of them."""
        for page in self.all():
            fingerprint, _, name = page.path.partition("/")
            try:
                with self._directories[fingerprint].open(name) as file:
                    problem = self._problem(file, page.size, fingerprint, name)
            except FileNotFoundError:
                continue  # an engine has evicted it meanwhile
            except OSError as error:
                problem = f"it cannot be read ({error.strerror or error})"
            if problem:
                yield page.path, problem

    def clear(self) -> tuple[int, list[str]]:
        """Delete all pages; returns how many, and those that cannot be deleted."""
        pages = self.all()
        any_directory = next(iter(self._directories.values()), None)
        kept = [page.path for page in pages if any_directory is None or not any_directory.remove_stored(page.path)]
        return len(pages) - len(kept), kept

    def _problem(self, file: BufferedReader, size: int, fingerprint: str, name: str) -> str:
        """Return why a page file would not be used; empty if it would be."""
        found = _header(file, size, fingerprint, name)
        if isinstance(found, str):
            return found
        if len(found.checksum) != MAC_BYTES:
            return "" if has_checksum(found, file) else "its checksum is wrong"
        if not self._secret:
            return "it carries a MAC; name the secret with --key-file"
        return "" if has_checksum(found, file, self._secret) else "its MAC is wrong, or of another key"


def _header(file: BufferedReader, size: int, fingerprint: str, name: str) -> PageHeader | str:
    """Return the header of a page file, or why it would not be used."""
    length = int.from_bytes(file.read(4), "little")
    if not 0 < length < min(MAX_HEADER, size):
        return "it has no header"
    try:
        header = msgspec.msgpack.decode(file.read(length), type=PageHeader)
    except UNREADABLE as error:
        return f"its header cannot be read ({error})"
    if header.magic != MAGIC:
        return f"its format is '{header.magic}', expected '{MAGIC}'"
    if header.fingerprint != fingerprint or f"{header.digest.hex()}-{header.group}.kv" != name:
        return "its name is not that of its content"
    if size - 4 - length != header.nbytes:
        return f"it has {size - 4 - length} bytes of values, expected {header.nbytes}"
    return header
