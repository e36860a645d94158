"""Directories of KV pages as `disk`, `file` and `shm` find them: damaged, cut, swapped, foreign, longer than they say.

Owns: the directories, and the engines that look for their prompts in them. Never does: damage a file. Called by: the
table of targets.

`moves` has three bytes a move: which content, under which name, and as what: a copy, a link, a directory, a pipe, or a longer
file. Pages are of two prompts, of another tenant, of other weights, and of a group of states.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from core.kv.block_keys import BlockKeys
from core.kv.sequence import KVSequence
from core_kit.fixtures.kv_context import config_of
from core_kv_connectors.tiers.local import LocalTiers
from core_kv_connectors.tiers.page_directory import page_name
from core_kv_connectors.tiers.page_file import page_parts
from core_kv_connectors.tiers.shared_files import SharedFiles, directory_name, read_key
from tests.fuzz.threads import no_thread_dies
from tests.kv.tier_fakes import FIRST, OTHER, OTHER_PRINT, PAGE_BYTES, PRINT, Engine, byte_of

PLACES = ("disk", "file", "shm")
NUM_PAGES, NUM_BLOCKS = 8, 64
NUM_TOKENS = 4 * NUM_PAGES
SECRET = "k" * 40
DAMAGED_PAGES = (0, 3)
NAMES = (*(f"{place}-{index}.kv" for place in PLACES for index in DAMAGED_PAGES), "moves")
HARMLESS = bytes(3)
"""A move of a page to where it is."""
MOST_MOVES = 64


@dataclass(frozen=True)
class Owner:
    """Whose pages there are. fingerprint, weights: of the engine; tenant, tokens: of the prompt."""

    tokens: range = FIRST
    tenant: str = ""
    fingerprint: str = PRINT
    weights: int = 0

    def pages(self, secret: bytes, group: int = 0) -> list[tuple[str, bytes]]:
        """Names and contents of the files of the prompt."""
        keys, sequence = BlockKeys("sha256", 4), KVSequence(list(self.tokens), tenant=self.tenant)
        found = []
        for index in range(NUM_PAGES):
            value = byte_of(sequence.token_ids[4 * index : 4 * index + 4], self.tenant, self.weights) + group
            key, page = keys.key(sequence, index), np.full(PAGE_BYTES, value, np.uint8)
            written = b"".join(page_parts(self.directory(secret), group, key, page, secret))
            found.append((page_name(group, key), written))
        return found

    def directory(self, secret: bytes) -> str:
        """The name of the directory of its pages."""
        return directory_name(self.fingerprint, secret)


OWNERS = (Owner(), Owner(tokens=OTHER), Owner(tenant="ann"), Owner(fingerprint=OTHER_PRINT, weights=5))
"""The first one's pages are damaged, and all of them are moved."""


def make_places(folder: Path) -> None:
    """Write the pages that are damaged, and look that engines use all pages where nothing is. Raises AssertionError."""
    (folder / "key").write_text(SECRET)
    (folder / "key").chmod(0o600)
    (folder / "moves").write_bytes(HARMLESS)
    for place in PLACES:
        pages = OWNERS[0].pages(_secret(place, folder))
        for index in DAMAGED_PAGES:
            (folder / f"{place}-{index}.kv").write_bytes(pages[index][1])
    assert read_places(folder) == [NUM_TOKENS] * len(PLACES) * len(OWNERS), "an engine does not find good pages"


def read_places(folder: Path) -> list[int]:
    """Run the prompts of all owners on engines with each place; returns the tokens that came from pages.

    Raises AssertionError for a block with other bytes than its tokens have, and what a thread of a connector raised.
    """
    moves = (folder / "moves").read_bytes()[: 3 * MOST_MOVES]
    found = []
    with no_thread_dies():
        for place in PLACES:
            secret = _secret(place, folder)
            root = folder / place
            shutil.rmtree(root, ignore_errors=True)
            _lay_out(root, _contents(folder, place, secret), moves)
            for fingerprint in (PRINT, OTHER_PRINT):
                owners = [owner for owner in OWNERS if owner.fingerprint == fingerprint]
                connector = _opened(place, root, folder, fingerprint)
                engine = Engine(connector, NUM_BLOCKS, weights=owners[0].weights)
                found += [engine.run(owner.tokens, tenant=owner.tenant) for owner in owners]
                connector.close()
    return found


def _secret(place: str, folder: Path) -> bytes:
    return read_key(str(folder / "key")) if place == "file" else b""


def _contents(folder: Path, place: str, secret: bytes) -> list[tuple[str, bytes]]:
    """Paths below the root, and contents; those of a group of states are last."""
    found = []
    for owner in OWNERS:
        found += [(f"{owner.directory(secret)}/{name}", written) for name, written in owner.pages(secret)]
    for index in DAMAGED_PAGES:
        found[index] = (found[index][0], (folder / f"{place}-{index}.kv").read_bytes())
    states = OWNERS[0].pages(secret, group=1)
    return found + [(f"{OWNERS[0].directory(secret)}/{name}", written) for name, written in states]


def _lay_out(root: Path, pages: list[tuple[str, bytes]], moves: bytes) -> None:
    """Write all pages, then move: three bytes tell whose content lies under whose name, and as what."""
    root.mkdir(mode=0o700)
    for path, written in pages:
        (root / path).parent.mkdir(mode=0o700, exist_ok=True)
        (root / path).write_bytes(written)
    for source, target, kind in zip(moves[0::3], moves[1::3], moves[2::3], strict=False):
        path, written = root / pages[target % len(pages)][0], pages[source % len(pages)][1]
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        match kind % 8:
            case 1:
                path.symlink_to(root / pages[source % len(pages)][0])
            case 2:
                path.mkdir()
            case 3:
                os.mkfifo(path)
            case 4:
                path.write_bytes(written * 2)
            case 5:
                with path.open("wb") as file:
                    file.write(written)
                    file.truncate(1 << 40)  # sparse: longer than any memory
            case _:
                path.write_bytes(written)


def _opened(place: str, root: Path, folder: Path, fingerprint: str) -> LocalTiers:
    config = config_of(root)
    if place == "disk":
        cache = replace(config.cache, host_bytes=0, disk_path=str(root), disk_bytes=1 << 20)
        return LocalTiers(replace(config, cache=cache), lambda: fingerprint, PAGE_BYTES)
    key_file = str(folder / "key") if place == "file" else None
    options = {"directory": str(root), "capacity": 1 << 20, "key_file": key_file, "name": place}
    return SharedFiles(config, lambda: fingerprint, PAGE_BYTES, **options)
