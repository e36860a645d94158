"""Names and content of the files: a checksum, the name of the block, and the bytes of its page."""

from __future__ import annotations

import hashlib

from core_kv_connectors.halves.contract import BlockName

DIGEST_BYTES = 16


def file_name(name: BlockName) -> str:
    """Return the name of a page's file."""
    return f"{label(name).hex()}.page"


def label(name: BlockName) -> bytes:
    """Return a digest of everything that a page's bytes depend on."""
    parts = (name.weights.encode(), b"%d" % name.group, name.digest, name.payload)
    return hashlib.blake2b(b"".join(b"%d:" % len(part) + part for part in parts), digest_size=DIGEST_BYTES).digest()


def seal(name: BlockName, page: memoryview) -> bytes:
    """Return the checksum of a page under its name."""
    checksum = hashlib.blake2b(label(name), digest_size=DIGEST_BYTES)
    checksum.update(page)
    return checksum.digest()
