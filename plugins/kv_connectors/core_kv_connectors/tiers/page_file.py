"""The file format of one block.

Owns: the format and its verification. Never does: choose names, open or delete. Called by: the disk tier,
both ends of the connector `tcp`, which send pages in this format, and the tier of stores, whose objects have it.

A file is the length of the header (uint32, little-endian), the header (msgpack, `PageHeader`) and the page. The
checksum reveals the remains of a crash or a bad disk (XXH3, 128 bits). With a secret it is a MAC of header and page
(BLAKE2b, 256 bits), which also reveals a page that was written without the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from io import BufferedReader

import msgspec
import numpy as np
import xxhash

from core.api.errors import UNREADABLE, CoreError
from core.api.kv_transfer import Page, PrefixKey

MAGIC = "core-kv-1"
MAX_HEADER = 1 << 14
"""Limit on header bytes, above the largest block's: 1024 tokens of 4 bytes each, and less than 200 others."""


MAC_BYTES = 32
PART = 1 << 20


class PageHeader(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The header of a file, which identifies its page.

    magic: the format.
    fingerprint: of model, numerics and layout.
    group: of the block. digest, payload: see `PrefixKey`.
    nbytes: of the page.
    checksum: of the page, or the MAC.
    """

    magic: str
    fingerprint: str
    group: int
    digest: bytes
    payload: bytes
    nbytes: int
    checksum: bytes


class PageError(CoreError):
    """Raised when a file is not the expected page; the message says why."""


def page_parts(
    fingerprint: str, group: int, key: PrefixKey, page: Page, secret: bytes = b""
) -> tuple[bytes, memoryview]:
    """Return the content of a page's file: the part before the page, and the page. secret: for a MAC; empty: none."""
    data = np.ascontiguousarray(page).data
    header = PageHeader(MAGIC, fingerprint, group, key.digest, key.payload, page.nbytes, b"")
    header.checksum = _checksum(header, data, secret)
    encoded = msgspec.msgpack.encode(header)
    length = len(encoded).to_bytes(4, "little")
    return length + encoded, data


def read_page(
    file: BufferedReader,
    fingerprint: str,
    group: int,
    key: PrefixKey,
    page_bytes: int,
    secret: bytes = b"",
    memory: Callable[[], Page] | None = None,
) -> Page:
    """Read the page of `page_bytes` bytes in a file; only the header and the page are read, whatever the file's size.

    memory: returns memory to read into; None: new memory.
    Raises PageError for any other content, OSError.
    """
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(4), "little")
    if not 0 < length < min(MAX_HEADER, size):
        raise PageError("it has no header")
    header = checked_header(file.read(length), fingerprint, group, key)
    held = size - 4 - length
    if not held == header.nbytes == page_bytes:
        raise PageError(f"it has {held} bytes of values, expected {page_bytes}")
    page = np.empty(page_bytes, np.uint8) if memory is None else memory()
    if file.readinto(page.data) != page_bytes:
        raise PageError("it became shorter while it was read")
    check_values(header, page, secret)
    return page


def page_in(
    content: memoryview,
    fingerprint: str,
    group: int,
    key: PrefixKey,
    page_bytes: int,
    secret: bytes = b"",
    memory: Callable[[], Page] | None = None,
) -> Page:
    """Return a copy of the page of `page_bytes` bytes in the content of a file.

    memory: returns memory to copy to; None: new memory.
    Raises PageError for any other content.
    """
    length = int.from_bytes(content[:4], "little")
    if not 0 < length < min(MAX_HEADER, len(content)):
        raise PageError("it has no header")
    header = checked_header(bytes(content[4 : 4 + length]), fingerprint, group, key)
    values = content[4 + length :]
    if not len(values) == header.nbytes == page_bytes:
        raise PageError(f"it has {len(values)} bytes of values, expected {page_bytes}")
    page = np.empty(page_bytes, np.uint8) if memory is None else memory()
    page[:] = np.frombuffer(values, np.uint8)
    check_values(header, page, secret)
    return page


def checked_header(encoded: bytes, fingerprint: str, group: int, key: PrefixKey) -> PageHeader:
    """Return the header of a block's page. Raises PageError when it is damaged, or the header of another page."""
    try:
        header = msgspec.msgpack.decode(encoded, type=PageHeader)
    except UNREADABLE as error:
        raise PageError(f"its header cannot be read ({error})") from error
    if header.magic != MAGIC:
        raise PageError(f"its format is '{header.magic}', expected '{MAGIC}'")
    if header.fingerprint != fingerprint:
        raise PageError("it was written for another model, numerics or layout")
    is_of_key = header.digest == key.digest and header.payload == key.payload
    if header.group != group or not is_of_key:
        raise PageError("it belongs to other tokens")
    return header


def check_values(header: PageHeader, page: Page, secret: bytes = b"") -> None:
    """Raise PageError unless a page is the one that its header was made for."""
    if not hmac.compare_digest(_checksum(header, page.data, secret), header.checksum):
        raise PageError("its checksum is wrong")


def has_checksum(header: PageHeader, file: BufferedReader, secret: bytes = b"") -> bool:
    """Whether the rest of a file is the page that its header was made for; it is read in parts."""
    state = _begin(header, secret)
    while part := file.read(PART):
        state.update(part)
    return hmac.compare_digest(state.digest(), header.checksum)


def _checksum(header: PageHeader, data: memoryview, secret: bytes) -> bytes:
    state = _begin(header, secret)
    state.update(data)
    return state.digest()


def _begin(header: PageHeader, secret: bytes) -> xxhash.xxh3_128 | hashlib.blake2b:
    """Return the state of a checksum before the page, or with a secret that of a MAC."""
    if not secret:
        return xxhash.xxh3_128()
    identity = msgspec.msgpack.encode(msgspec.structs.replace(header, checksum=b""))
    return hashlib.blake2b(identity, key=secret, digest_size=MAC_BYTES)
