"""The digest of a checkpoint's processor, which is a part of the digest of each item.

Owns: which files it covers. Called by: the processors.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

FILES: Final = ("processor_config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json")
"""Files that affect what a processor makes of an item."""


def fingerprint(directory: Path, *facts: object) -> str:
    """Return a digest of the processor's files and of `facts`."""
    digest = hashlib.sha256(repr(facts).encode())
    for name in FILES:
        path = directory / name
        if path.is_file():
            digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()
