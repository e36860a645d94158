"""Why a page is missing that could have been there: it was damaged, or never saved, and explanations say which."""

import errno
import os
import threading
import time

import pytest

from core.kv.connectors import KVConnectors
from core.kv.loads import MAX_LOAD_S
from core.kv.sequence import KVSequence
from core_kv_connectors.misses import Explanations
from core_kv_connectors.tiers.faults import MAX_FAULTS, Faults
from core_kv_connectors.tiers.filtered import FilteredTiers
from core_kv_connectors.tiers.local import LocalTiers
from core_kv_connectors.tiers.page_directory import page_name
from core_kv_connectors.tiers.shared_files import SharedFiles
from core_supervision.link.anonymous_file import anonymous_file
from tests.kv.kept_engine import KeptEngine
from tests.kv.tier_fakes import FIRST, OTHER, PAGE_BYTES, PRINT, Engine, config_of, key, look_up

ROOM = 1 << 20


class Explained(Engine):
    """An engine that explains the misses of its look-ups."""

    def __init__(self, connector):
        super().__init__(KVConnectors([connector, Explanations()]), num_blocks=10)

    def cause(self, tokens, tenant=""):
        """The cause of a prompt's first miss, and its place."""
        sequence = KVSequence(list(tokens), tenant=tenant)
        miss = self.kv.miss(sequence, look_up(self.kv, sequence))
        return miss.cause, miss.index


@pytest.fixture
def open_tiers(tmp_path):
    """A function that opens a connector with a disk."""
    opened = []

    def make(kind=LocalTiers, **options):
        config = config_of(tmp_path, disk_path=str(tmp_path / "pages"), disk_bytes=ROOM)
        if kind is SharedFiles:
            options = {"directory": str(tmp_path / "pages"), "capacity": ROOM}
        opened.append(kind(config, lambda: PRINT, PAGE_BYTES, **options))
        return opened[-1]

    yield make
    for tiers in opened:
        tiers.close()


def files(path):
    return sorted(path.rglob("*.kv"))


def cut(path):
    os.truncate(path, 60)


def change(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", [LocalTiers, SharedFiles])
@pytest.mark.parametrize("damage", [cut, change])
def test_a_damaged_page_is_named(kind, damage, open_tiers, tmp_path):
    tiers = open_tiers(kind)
    engine = Explained(tiers)
    engine.run(FIRST)
    engine.run(OTHER)
    assert tiers.disk.flush()
    (path,) = tmp_path.rglob(page_name(0, engine.kv._keys.key(KVSequence(list(FIRST)), 2)))
    damage(path)
    assert engine.cause(FIRST) == ("page_damaged", 8)
    assert engine.cause(FIRST, tenant="other") == ("first_seen", 0), "of another tenant nothing is told"
    engine.run(FIRST)
    engine.run(OTHER)
    assert tiers.disk.flush()
    assert engine.cause(FIRST) == ("last_block", 32), "it was saved again"


def test_a_damaged_page_of_an_earlier_engine_is_named(open_tiers, tmp_path):
    tiers = open_tiers()
    engine = Explained(tiers)
    engine.run(FIRST)
    engine.run(OTHER)
    tiers.close()
    for path in files(tmp_path):
        change(path)
    assert Explained(open_tiers()).cause(FIRST) == ("page_damaged", 0)


def test_pages_that_gave_way_are_evicted(open_tiers, tmp_path):
    tiers = open_tiers()
    engine = Explained(tiers)
    engine.run(FIRST)
    engine.run(OTHER)
    assert tiers.disk.flush()
    for path in files(tmp_path):
        path.unlink()
    assert engine.cause(FIRST) == ("evicted", 0)


def test_a_page_that_the_disk_had_no_room_for_was_not_saved(open_tiers, monkeypatch):
    tiers = open_tiers()
    engine = Explained(tiers)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tiers.disk.writer, "_place", full)
    engine.run(FIRST)
    engine.run(OTHER)
    tiers.disk.flush()
    cause, index = engine.cause(FIRST)
    assert cause == "not_saved" and index > 0, "the other pages wait for the disk"


def test_a_block_that_a_rule_leaves_out_was_not_saved(open_tiers):
    engine = Explained(open_tiers(FilteredTiers, store_threshold=2, prompt_only=False))
    assert engine.cause(FIRST) == ("first_seen", 0)
    engine.run(FIRST)
    engine.run(OTHER)
    assert engine.cause(FIRST) == ("not_saved", 0)


def test_a_page_that_changed_in_host_memory_is_named(tmp_path):
    tiers = LocalTiers(config_of(tmp_path, host_bytes=ROOM), lambda: PRINT, PAGE_BYTES)
    tiers.host.checked = True
    engine = Explained(tiers)
    engine.run(FIRST)
    engine.run(OTHER)
    for _, page, _ in tiers.host._pages.values():
        page ^= 1
    sequence = KVSequence(list(FIRST))
    engine.kv.attach(sequence, look_up(engine.kv, sequence))
    engine.kv.free(sequence)
    assert engine.cause(FIRST) == ("page_damaged", 0)


def test_a_kept_block_that_changed_is_named():
    file = anonymous_file("test-kv", 0)
    engine = KeptEngine(file)
    engine.run(FIRST)
    engine.rest()
    engine.device.blocks[4] ^= 1
    following = KeptEngine(file)
    following.kv.lookup(sequence := KVSequence(list(FIRST)))
    assert following.kept.missing(following.kv._keys.key(sequence, 3)) == "page_damaged"
    following.run(FIRST)
    assert following.kept.missing(following.kv._keys.key(sequence, 3)) == ""
    os.close(file)


def test_old_faults_are_forgotten():
    faults = Faults()
    for number in range(MAX_FAULTS + 1):
        faults.add(key(number), "not_saved")
    assert [faults.cause(key(number)) for number in (0, 1, MAX_FAULTS)] == ["", "not_saved", "not_saved"]


@pytest.mark.parametrize("kind", [LocalTiers, SharedFiles])
def test_a_page_that_comes_late_is_named(kind, open_tiers, monkeypatch):
    """Until it has come in time; a prompt of which there is no page is none of them."""
    tiers = open_tiers(kind)
    engine = Explained(tiers)
    for tokens in (FIRST, OTHER):
        engine.run(tokens)
        assert tiers.disk.flush()
    goes_on, read, now = threading.Event(), tiers.disk.read, [0.0]

    def read_late(group, known):
        if known == engine.kv._keys.key(KVSequence(list(FIRST)), 2):
            assert goes_on.wait(30.0)
        return read(group, known)

    monkeypatch.setattr(tiers.disk, "read", read_late)
    monkeypatch.setattr(engine.kv.connectors.loads, "_clock", lambda: now[0])
    sequence = KVSequence(list(FIRST))
    load = engine.kv.lookup(sequence)
    while len(load.pages) < 2:
        time.sleep(0.001)
    assert not engine.kv.loads.is_over(sequence.load)
    now[0] += MAX_LOAD_S
    assert engine.kv.loads.is_over(sequence.load)
    miss = engine.kv.miss(sequence, engine.kv.lookup(sequence))
    assert (miss.cause, miss.index) == ("page_late", 8)
    unknown = KVSequence(range(500, 533))
    assert engine.kv.miss(unknown, engine.kv.lookup_now(unknown)).cause == "first_seen"
    goes_on.set()
    engine.kv.connectors.loads.end(load)
    now[0] += MAX_LOAD_S
    assert engine.cause(FIRST) == ("last_block", 32)
    assert tiers.disk.missing(engine.kv._keys.key(KVSequence(list(FIRST)), 2)) == ""
