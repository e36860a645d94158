"""The disk tier touches nothing but its own files, and no fault of a disk reaches the engine."""

import errno
import os
import threading
import time

import numpy as np
import pytest

from core.api.errors import ConfigError
from core_kv_connectors.tiers.page_directory import page_name
from core_kv_connectors.tiers.tiers import KVTiers
from tests.kv.tier_fakes import FIRST, OTHER, OTHER_PRINT, PRINT, Engine, disk_of, key, page

SIZE = 270
"""Bytes of a page's file, and some more."""


@pytest.fixture
def open_disk():
    """Opens tiers that are closed at the end."""
    opened = []

    def make(*args, **kwargs):
        opened.append(disk_of(*args, **kwargs))
        return opened[-1]

    yield make
    for disk in opened:
        disk.close()


@pytest.fixture
def faults(monkeypatch):
    """Calls of `os` that fail: {name of the function: (errno, condition on its arguments)}; `calls` counts them."""
    found, calls = {}, []

    def wrap(name):
        real = getattr(os, name)

        def call(*args, **kwargs):
            if name in found and found[name][1](*args, **kwargs):
                calls.append(name)
                raise OSError(found[name][0], os.strerror(found[name][0]))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("stat", "open", "write", "replace", "listdir", "scandir", "unlink", "utime", "mkdir"):
        wrap(name)
    return found, calls


def write(disk, *numbers):
    for number in numbers:
        disk.write(0, key(number), page(number))
        disk.flush()


def has(disk, *numbers):
    return [disk.contains(0, key(number)) for number in numbers]


def bytes_in(directory, but=()):
    return sum(path.stat().st_size for path in directory.iterdir() if path not in but)


def file_of(disk, number):
    return disk.directory / page_name(0, key(number))


def test_foreign_files_are_neither_deleted_nor_counted_nor_in_the_way(tmp_path, open_disk):
    target = tmp_path / "target"
    target.write_bytes(b"mine" * 1000)
    root = tmp_path / "cache"
    directories = [root / "other", root / PRINT, root / OTHER_PRINT]
    for directory in directories:
        directory.mkdir(parents=True, mode=0o700)
        for name in ("film.kv", "draft.tmp", "x.kv.tmp", f"{'a' * 63}-0.kv", f"{'a' * 64}-0.kv.tmp", f"{'0' * 31}.tmp"):
            (directory / name).write_bytes(b"x" * 5000)
            os.utime(directory / name, (0, 0))
        (directory / "x.tmp").mkdir()
        (directory / f".{'1' * 32}.tmp").mkdir()
        (directory / f"{'c' * 64}-0.kv").mkdir()
        (directory / f"{'b' * 64}-0.kv").symlink_to(target)
        os.mkfifo(directory / f"{'d' * 64}-0.kv")
    (root / f"{'d' * 64}-0.kv").write_bytes(b"x" * 5000)
    (root / ("e" * 32)).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / f"{'a' * 64}-0.kv").write_bytes(b"x" * 5000)
    before = sorted(path for path in tmp_path.rglob("*"))
    disk = open_disk(root, capacity=10 * SIZE)
    write(disk, *range(40))
    assert disk.num_dropped == 0 and has(disk, 39) == [True]
    assert 0 < bytes_in(disk.directory, but=before) <= 10 * SIZE
    disk.clear()
    assert sorted(path for path in tmp_path.rglob("*")) == before
    assert target.read_bytes() == b"mine" * 1000


def test_files_of_other_users_are_left_alone(tmp_path, open_disk, monkeypatch):
    disk = open_disk(tmp_path, capacity=5 * SIZE)
    write(disk, 1, 2, 3)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert disk.read(0, key(1)) is None and has(disk, 1, 2, 3) == [False] * 3
    write(disk, 1)
    disk.clear()
    monkeypatch.undo()
    assert has(disk, 1, 2, 3) == [True] * 3


@pytest.mark.parametrize("make", ["link", "fifo", "directory"])
def test_what_has_a_pages_name_but_is_no_file_stays(tmp_path, open_disk, make):
    disk = open_disk(tmp_path / "cache")
    path = file_of(disk, 1)
    if make == "link":
        (tmp_path / "target").write_bytes(b"secret")
        path.symlink_to(tmp_path / "target")
    elif make == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    kind = path.lstat().st_mode
    assert disk.read(0, key(1)) is None and has(disk, 1) == [False]
    write(disk, 1, 2)
    assert path.lstat().st_mode == kind and has(disk, 1, 2) == [False, True]


def test_no_more_is_read_than_a_page_has(tmp_path, open_disk):
    disk = open_disk(tmp_path)
    write(disk, 1)
    with file_of(disk, 1).open("r+b") as file:
        file.truncate(1 << 40)
    assert disk.read(0, key(1)) is None
    assert not file_of(disk, 1).exists()


def test_a_directory_of_somebody_else_is_refused(tmp_path, monkeypatch):
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(ConfigError, match=rf"belongs to user {uid}, expected {uid + 1}.*choose another directory"):
        disk_of(tmp_path)


@pytest.mark.parametrize("name", [".", PRINT])
@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777, 0o702])
def test_a_directory_that_others_can_write_is_refused(tmp_path, mode, name):
    path = tmp_path / "cache" / name
    path.mkdir(parents=True)
    (tmp_path / "cache").chmod(0o700)
    path.chmod(mode)
    with pytest.raises(
        ConfigError, match=rf"--kv-offloading-disk-path .*written by other users \(mode {mode:o}\).*go-w"
    ):
        disk_of(tmp_path / "cache")


def test_the_directory_of_a_fingerprint_is_no_link(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / PRINT).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be made"):
        disk_of(tmp_path)


def test_made_directories_are_private_whatever_the_umask(tmp_path, open_disk):
    before = os.umask(0)
    try:
        disk = open_disk(tmp_path / "a" / "b")
        write(disk, 1)
    finally:
        os.umask(before)
    for path in (tmp_path / "a", tmp_path / "a" / "b", disk.directory, file_of(disk, 1)):
        assert path.stat().st_mode & 0o077 == 0


def test_a_directory_that_takes_our_place_gets_nothing(tmp_path, open_disk):
    disk = open_disk(tmp_path / "cache")
    write(disk, 1)
    (tmp_path / "cache").rename(tmp_path / "moved")
    (tmp_path / "cache" / PRINT).mkdir(parents=True)
    write(disk, 2)
    assert list((tmp_path / "cache" / PRINT).iterdir()) == []
    assert has(disk, 1, 2) == [True, True]


def test_a_directory_that_was_deleted_is_made_again(tmp_path, open_disk):
    disk = open_disk(tmp_path / "cache")
    write(disk, 1)
    for path in (file_of(disk, 1), disk.directory, tmp_path / "cache"):
        path.unlink() if path.is_file() else path.rmdir()
    assert has(disk, 1) == [False] and disk.read(0, key(1)) is None
    write(disk, 2)
    assert file_of(disk, 2).exists() and disk.num_dropped == 0


@pytest.mark.parametrize("call", ["stat", "open", "write", "replace", "listdir"])
@pytest.mark.parametrize("code", ["EIO", "ESTALE", "EACCES", "ENOTDIR", "ENOENT", "ENOSPC", "EROFS"])
def test_no_error_of_the_disk_reaches_the_engine(tmp_path, faults, caplog, call, code):
    tiers = KVTiers(None, disk_of(tmp_path))
    engine = Engine(tiers, num_blocks=10)
    engine.run(FIRST)
    engine.run(OTHER)
    tiers.disk.flush()
    found, _ = faults
    found[call] = (
        getattr(errno, code),
        lambda path, *args, **kwargs: call in ("write", "listdir") or "dir_fd" in str(kwargs),
    )
    with caplog.at_level("WARNING", "core"):
        for _ in range(3):
            engine.run(range(200, 233))
            engine.run(OTHER)
            engine.run(FIRST)
        assert engine.kv.reset()
    assert len(caplog.records) <= 3, "not one line a page"
    found.clear()
    assert engine.run(FIRST) == 0
    tiers.close()


def test_a_disk_that_fails_is_left_alone_for_a_while(tmp_path, open_disk, faults, caplog, monkeypatch):
    disk = open_disk(tmp_path)
    write(disk, 1, 2, 3)
    found, calls = faults
    found["stat"] = (errno.EIO, lambda *args, **kwargs: True)
    with caplog.at_level("WARNING", "core"):
        assert has(disk, *([1] * 50)) == [False] * 50
    assert len(calls) == 1 and len(caplog.records) == 1
    now = time.monotonic()
    monkeypatch.setattr("core_kv_connectors.tiers.rest.time.monotonic", lambda: now + 1.5)
    assert has(disk, 1, 1) == [False, False] and len(calls) == 2, "tried again"
    monkeypatch.setattr("core_kv_connectors.tiers.rest.time.monotonic", lambda: now + 3.0)
    found.clear()
    assert has(disk, 1) == [False], "each time for longer"
    monkeypatch.setattr("core_kv_connectors.tiers.rest.time.monotonic", lambda: now + 10.0)
    assert has(disk, 1) == [True] and disk.read(0, key(1)) is not None


def test_pages_wait_while_a_disk_cannot_be_written(tmp_path, open_disk, faults, monkeypatch):
    monkeypatch.setattr("core_kv_connectors.tiers.rest.FIRST_S", 0.05)
    disk = open_disk(tmp_path)
    found, _ = faults
    found["write"] = (errno.EIO, lambda *args: True)
    for number in range(5):
        disk.write(0, key(number), page(number))
    assert not disk.flush() and has(disk, 4) == [True]
    assert (disk.read(0, key(4)) == page(4)).all(), "from memory"
    found.clear()
    deadline = time.monotonic() + 20
    while not disk.flush() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert has(disk_again := open_disk(tmp_path), 4) == [True] and disk_again.read(0, key(4)) is not None
    assert 1 <= disk.num_dropped <= 4


def test_on_a_full_disk_old_pages_make_room(tmp_path, open_disk, faults, caplog):
    """The disk holds ten pages, the tier may have a thousand."""
    disk = open_disk(tmp_path, capacity=1000 * SIZE)
    found, calls = faults

    def is_full(*args):
        return len(list(disk.directory.glob("*.kv"))) >= 10

    found["write"] = (errno.ENOSPC, is_full)
    with caplog.at_level("WARNING", "core"):
        for number in range(40):
            write(disk, number)
            file = file_of(disk, number)
            os.utime(file, (1000 + number, 1000 + number))
    assert disk.num_dropped == 0 and has(disk, 39, 38, 37) == [True] * 3 and has(disk, 0, 1) == [False] * 2
    assert len(calls) < 10 and len(caplog.records) == 1 and "is full" in caplog.text


def test_a_disk_that_others_filled_is_not_emptied_of_them(tmp_path, open_disk, faults, caplog):
    (tmp_path / "others").write_bytes(b"x" * 10000)
    disk = open_disk(tmp_path)
    found, _ = faults
    found["write"] = (errno.ENOSPC, lambda *args: True)
    with caplog.at_level("WARNING", "core"):
        write(disk, 1)
    assert disk.num_dropped == 1 and "No space left" in caplog.text and has(disk, 1) == [False]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["others"], "no half page either"


def test_eviction_goes_past_files_that_cannot_be_deleted(tmp_path, open_disk, faults):
    disk = open_disk(tmp_path, capacity=10 * SIZE)
    write(disk, *range(5))
    stuck = {page_name(0, key(number)) for number in range(5)}
    found, _ = faults
    found["unlink"] = (errno.EPERM, lambda path, **kwargs: os.path.basename(path) in stuck)
    write(disk, *range(5, 30))
    assert has(disk, *range(5)) == [True] * 5 and has(disk, 29) == [True]
    assert bytes_in(disk.directory) <= 10 * SIZE and disk.num_dropped == 0


def test_a_page_on_its_way_does_not_survive_a_reset(tmp_path, open_disk, monkeypatch):
    disk = open_disk(tmp_path)
    begun, go_on = threading.Event(), threading.Event()
    real = os.write

    def slow(descriptor, data):
        begun.set()
        assert go_on.wait(20)
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", slow)
    disk.write(0, key(1), page(1))
    assert begun.wait(20)
    disk.clear()
    disk.write(0, key(2), page(2))
    go_on.set()
    assert disk.flush()
    assert has(disk, 1, 2) == [False, True]
    assert [path.name for path in disk.directory.iterdir()] == [file_of(disk, 2).name]


def test_a_reset_on_a_failing_disk_is_made_up_for(tmp_path, open_disk, faults, monkeypatch):
    monkeypatch.setattr("core_kv_connectors.tiers.rest.FIRST_S", 0.0)
    disk = open_disk(tmp_path)
    write(disk, 1, 2)
    found, _ = faults
    found["scandir"] = (errno.EIO, lambda path: True)
    disk.clear()
    assert has(disk, 1) == [False] and file_of(disk, 1).exists()
    found.clear()
    assert has(disk, 1, 2) == [False, False] and not file_of(disk, 1).exists()


def test_after_the_end_nothing_is_taken(tmp_path):
    disk = disk_of(tmp_path)
    disk.close()
    write(disk, 2)
    assert disk.num_dropped == 1 and has(disk, 2) == [False]


def test_a_page_larger_than_all_that_may_wait_is_written_alone(tmp_path, open_disk, monkeypatch):
    monkeypatch.setattr("core_kv_connectors.tiers.page_queue.MAX_PENDING_BYTES", 50)
    disk = open_disk(tmp_path)
    write(disk, 1)
    assert np.array_equal(disk.read(0, key(1)), page(1))
