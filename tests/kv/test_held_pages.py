"""Pages that pins hold: they do not give way, in host memory and on disk, also to other processes and after a restart."""

import os
import time

import numpy as np
import pytest

from core.api.kv_transfer import PrefixKey
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.page_directory import page_name
from tests.kv.tier_fakes import PAGE_BYTES, PRINT, disk_of

PAGE = np.ones(PAGE_BYTES, np.uint8)


def key(number: int) -> PrefixKey:
    return PrefixKey(number.to_bytes(32, "little"), number.to_bytes(16, "little"))


def name(number: int) -> tuple[int, bytes]:
    return 0, key(number).digest


def file(number: int) -> str:
    return page_name(0, key(number))


@pytest.mark.parametrize("eviction", ["lru", "arc", "cost"])
def test_host_memory_holds_pages_that_are_there_and_pages_that_come(eviction):
    tier = HostTier(4 * PAGE_BYTES, eviction=eviction)
    tier.write(0, key(1), PAGE)
    assert tier.hold("pin", {name(1), name(2)}, 2)
    for number in range(2, 12):
        tier.write(0, key(number), PAGE)
        tier.check_integrity()
    assert tier.read(0, key(1)) is not None and tier.read(0, key(2)) is not None
    assert not tier.contains(0, key(3))
    assert tier.hold("pin", set(), 0)
    for number in range(12, 16):
        tier.write(0, key(number), PAGE)
    tier.check_integrity()
    assert not tier.contains(0, key(1)) and not tier.contains(0, key(2))


def test_host_memory_that_is_all_held_takes_no_other_page():
    tier = HostTier(2 * PAGE_BYTES)
    assert tier.hold("pin", {name(1), name(2)}, 2)
    for number in (1, 2, 3):
        tier.write(0, key(number), PAGE)
    tier.check_integrity()
    assert not tier.contains(0, key(3)) and tier.contains(0, key(1)) and tier.contains(0, key(2))
    tier.discard(0, key(1))
    tier.write(0, key(3), PAGE)
    tier.check_integrity()
    assert tier.contains(0, key(3))


def test_owners_share_what_they_hold_and_none_gets_more_than_the_limit():
    tier = HostTier(8 * PAGE_BYTES)
    assert tier.hold("one", {name(1), name(2)}, 3)
    assert tier.hold("two", {name(2), name(3)}, 3)
    assert not tier.hold("three", {name(4)}, 3)
    assert not tier.hold("two", {name(3), name(4), name(5)}, 3)
    assert tier.is_held(0, key(2)), "what was held before is held still"
    assert tier.hold("one", set(), 0)
    assert tier.is_held(0, key(2)) and not tier.is_held(0, key(1))


def written(disk, *numbers):
    for number in numbers:
        disk.write(0, key(number), PAGE)
    assert disk.flush()


def until(condition):
    while not condition():
        time.sleep(0.001)


def used(tmp_path, number):
    return os.stat(tmp_path / PRINT / file(number)).st_mtime


def is_held(tmp_path, number):
    return used(tmp_path, number) > time.time() + 100


def test_a_disk_holds_pages_until_their_time_has_passed(tmp_path):
    written(disk := disk_of(tmp_path), 1)
    page_size = os.stat(tmp_path / PRINT / file(1)).st_size
    disk.writer.capacity = 6 * page_size
    assert disk.hold("pin", {file(1), file(2)}, 0.5, 200.0)
    written(disk, 2)
    until(lambda: is_held(tmp_path, 1) and is_held(tmp_path, 2))
    assert disk.read(0, key(1)) is not None
    assert is_held(tmp_path, 1), "a read leaves it held"
    assert not disk.hold("other", {file(number) for number in range(10, 20)}, 0.5, 200.0)
    written(disk, *range(3, 20))
    assert disk.contains(0, key(1)) and disk.contains(0, key(2)) and not disk.contains(0, key(3))
    disk.close()
    written(other := disk_of(tmp_path, capacity=6 * page_size), *range(20, 40))
    assert other.contains(0, key(1)), "another process, after a restart, does not delete it"
    assert other.hold("pin", {file(1)}, 0.5, 200.0)
    assert other.hold("pin", set(), 0.5, 0.0)
    until(lambda: not is_held(tmp_path, 1))
    os.utime(tmp_path / PRINT / file(1), (1.0, 1.0))
    os.utime(tmp_path / PRINT / file(2), (2.0, 2.0))
    written(other, *range(40, 60))
    assert not other.contains(0, key(1)) and not other.contains(0, key(2)), "their time has passed"
    other.close()


def test_marks_that_are_left_at_the_end_are_set(tmp_path):
    disk = disk_of(tmp_path)
    assert disk.hold("pin", {file(number) for number in range(100)}, 1.0, 200.0)
    for number in range(100):
        disk.write(0, key(number), PAGE)
    disk.close()
    assert all(is_held(tmp_path, number) for number in range(100))
