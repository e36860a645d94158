"""One block in one file.

Owns: the format and its verification. Never does: choose names or delete. Called by: the disk tier.

A file is the length of the header (uint32, little-endian), the header (msgpack, `PageHeader`) and the page. It is written
under another name and then renamed, so a reader sees all of it or nothing; what a crash or a bad disk leaves is found out
by the checksum (XXH3, 128 bits).
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from core.api.errors import CoreError
from core.api.kv_transfer import Page
from core.kv.hashing import PrefixKey

MAGIC = "core-kv-1"
MAX_HEADER = 1 << 20


class PageHeader(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What the page belongs to. fingerprint: of model, numerics and layout. digest, payload: see `PrefixKey`."""

    magic: str
    fingerprint: str
    group: int
    digest: bytes
    payload: bytes
    nbytes: int
    checksum: bytes


class PageError(CoreError):
    """A file is not the page that was looked for; the message says in which way."""


def write_page(path: Path, fingerprint: str, group: int, key: PrefixKey, page: Page) -> int:
    """Write a page so that it appears at once; returns its bytes on disk. Raises OSError."""
    data = np.ascontiguousarray(page).data
    checksum = xxhash.xxh3_128_digest(data)
    header = msgspec.msgpack.encode(
        PageHeader(MAGIC, fingerprint, group, key.digest, key.payload, page.nbytes, checksum)
    )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(len(header).to_bytes(4, "little") + header)
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return 4 + len(header) + page.nbytes


def read_page(path: Path, fingerprint: str, group: int, key: PrefixKey) -> Page:
    """The page in a file. Raises FileNotFoundError without one, PageError for any other content, OSError."""
    data = path.read_bytes()
    length = int.from_bytes(data[:4], "little")
    if not 0 < length < min(MAX_HEADER, len(data)):
        raise PageError("it has no header")
    try:
        header = msgspec.msgpack.decode(data[4 : 4 + length], type=PageHeader)
    except msgspec.DecodeError as error:
        raise PageError(f"its header cannot be read ({error})") from error
    if header.magic != MAGIC:
        raise PageError(f"its format is '{header.magic}', expected '{MAGIC}'")
    if header.fingerprint != fingerprint:
        raise PageError("it was written for another model, numerics or layout")
    if (header.group, header.digest) != (group, key.digest) or header.payload != key.payload:
        raise PageError("it belongs to other tokens")
    page = np.frombuffer(data, np.uint8, offset=4 + length)
    if page.nbytes != header.nbytes:
        raise PageError(f"it has {page.nbytes} bytes of values, expected {header.nbytes}")
    if xxhash.xxh3_128_digest(page.data) != header.checksum:
        raise PageError("its checksum is wrong")
    return page
