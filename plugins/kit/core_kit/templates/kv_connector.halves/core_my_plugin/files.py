"""Names and content of the files: a checksum, the name of the block, and the bytes of its page."""

from __future__ import annotations

import hashlib

from core_kv_connectors.halves.contract import BlockName

DIGEST_BYTES = 16


def file_name(name: BlockName) -> str:
    """Return the name of a page's file: a digest of everything that its bytes depend on."""
    parts = (name.weights.encode(), b"%d" % name.group, name.digest, name.payload)
    content = b"".join(b"%d:" % len(part) + part for part in parts)
    return f"{hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()}.page"


def seal(name: BlockName, page: memoryview) -> bytes:
    """Return the checksum of a page under its name."""
    return hashlib.blake2b(file_name(name).encode() + page, digest_size=DIGEST_BYTES).digest()
