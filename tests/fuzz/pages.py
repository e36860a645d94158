"""Files of KV pages, as `tiers` and `file` write them: a damaged one is refused, or has the very bytes of the page.

Owns: the pages, and what their readers do with them. Never does: damage a file. Called by: the table of targets.
"""

from pathlib import Path

import numpy as np

from core.kv.hashing import PrefixHasher
from core_kv_connectors.tiers.page_file import page_parts, read_page

PRINT = "0a" * 16
GROUP = 3
PAGE = np.random.default_rng(0).integers(0, 256, 600).astype(np.uint8)
SECRETS = {"plain.kv": b"", "keyed.kv": b"k" * 32}
NAMES = tuple(SECRETS)
KEY = PrefixHasher().key(b"root", [5, 7, 11, 13])


def make_pages(folder: Path) -> None:
    """One page with a checksum, and one with a MAC."""
    for name, secret in SECRETS.items():
        (folder / name).write_bytes(b"".join(page_parts(PRINT, GROUP, KEY, PAGE, secret)))


def read_pages(folder: Path) -> None:
    """Read both. Raises PageError, or AssertionError for a page with other bytes."""
    for name, secret in SECRETS.items():
        with (folder / name).open("rb") as file:
            page = read_page(file, PRINT, GROUP, KEY, PAGE.nbytes, secret)
        assert (page == PAGE).all(), f"{name} was read with other bytes than it was written with"
