"""A network file system that hangs holds no step: look-ups go on without an answer, and requests wait for a second at most."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.api.errors import ConfigError
from core.api.kv_load import KVLoad
from core.kv.connectors import KVConnectors
from core.kv.sequence import KVSequence
from core_kv_connectors.tiers.limited_calls import LimitedCalls
from core_kv_connectors.tiers.page_directory import PageDirectory
from core_kv_connectors.tiers.page_reader import STUCK_S
from core_kv_connectors.tiers.tiers import KVTiers
from tests.kv.tier_fakes import FIRST, OTHER, Engine, disk_of, key, page

PATIENCE_S = 20.0


class Mount:
    """A directory with the pages of FIRST and OTHER. While `hangs` is set, no call of it returns before `go`.

    planner_calls: calls that the planning thread, which is the test's, has made itself.
    """

    def __init__(self, path, monkeypatch):
        before = KVTiers(None, disk_of(path))
        engine = Engine(before, num_blocks=10)
        for tokens in (FIRST, OTHER, FIRST):
            engine.run(tokens)
            assert before.disk.flush()
        before.close()
        self.now = 100.0
        self.hangs, self.go = False, threading.Event()
        self.planner_calls = []
        self.disk = disk_of(path)
        self.disk.calls = LimitedCalls(clock=lambda: self.now)
        self.tiers = KVTiers(None, self.disk, clock=lambda: self.now)
        planner = threading.get_ident()

        def watched(name):
            real = getattr(PageDirectory, name)

            def call(*args, **kwargs):
                if threading.get_ident() == planner:
                    self.planner_calls.append(name)
                elif self.hangs:
                    assert self.go.wait(PATIENCE_S)
                return real(*args, **kwargs)

            monkeypatch.setattr(PageDirectory, name, call)

        for name in ("has", "open", "publish", "remove", "remove_all", "all_pages", "remove_stored"):
            watched(name)
        monkeypatch.setattr("core_kv_connectors.tiers.rest.FIRST_S", 0.0)

    def engine(self, num_blocks=40):
        return Engine(KVConnectors([self.tiers], clock=lambda: self.now), num_blocks)

    def come_back(self):
        """Let all calls return, and wait for that."""
        self.hangs = False
        self.go.set()
        assert self.disk.flush(PATIENCE_S)
        limit = time.monotonic() + PATIENCE_S
        while self.disk.calls.is_late or self.tiers.pages.reader.is_stuck:
            assert time.monotonic() < limit
            time.sleep(0.001)

    def read(self, key):
        """A page, as the reader's thread finds it."""
        with ThreadPoolExecutor(1) as reader:
            return reader.submit(self.disk.read, 0, key).result(PATIENCE_S)

    def close(self):
        self.go.set()
        self.tiers.close()


@pytest.fixture
def mount(tmp_path, monkeypatch):
    made = Mount(tmp_path, monkeypatch)
    yield made
    made.close()
    assert made.planner_calls == []


def test_the_planning_thread_makes_no_call_itself(mount):
    engine = mount.engine(10)
    for tokens in (FIRST, OTHER, range(200, 233), FIRST):
        engine.run(tokens)
    mount.tiers.save_some(engine.kv, 100)
    mount.tiers.discard(0, engine.kv.key(KVSequence(list(FIRST)), 0))
    assert engine.run(OTHER) == 32
    assert engine.kv.reset()
    assert engine.run(FIRST) == 0


def test_a_look_up_that_hangs_is_waited_for_briefly_then_computed(mount):
    kv = mount.engine().kv
    mount.hangs = True
    sequence = KVSequence(list(FIRST))
    assert isinstance(kv.lookup(sequence), KVLoad), "it may be there"
    assert not kv.loads.is_over(sequence.load)
    mount.now += STUCK_S + 0.1
    other = KVSequence(list(OTHER))
    assert not isinstance(kv.lookup(other), KVLoad), "the mount is not asked any more"
    assert kv.loads.is_over(sequence.load) and kv.lookup(sequence).num_tokens == 0


def test_a_mount_that_answers_late_serves_who_has_waited(mount):
    kv = mount.engine().kv
    mount.hangs = True
    sequence = KVSequence(list(FIRST))
    assert isinstance(kv.lookup(sequence), KVLoad)
    mount.go.set()
    while not kv.loads.is_over(sequence.load):
        kv.loads.wait(PATIENCE_S)
    assert kv.lookup(sequence).num_tokens == 32


def test_evicted_blocks_are_not_held_up_by_a_mount_that_hangs(mount):
    engine = mount.engine(10)
    mount.hangs = True
    kv = engine.kv
    kv.lookup(KVSequence(list(FIRST)))
    mount.now += STUCK_S + 0.1
    for tokens in (FIRST, OTHER, FIRST, OTHER):
        assert engine.run(tokens) in (0, 32), "computed, or from pages that wait to be written"
    mount.come_back()
    assert engine.run(FIRST) == 32


def test_a_page_that_cannot_be_deleted_yet_is_not_returned(mount):
    kv = mount.engine().kv
    third = kv.key(KVSequence(list(FIRST)), 3)
    mount.hangs = True
    mount.tiers.discard(0, third)
    mount.hangs = False
    assert mount.read(third) is None, "although its file is still there"
    mount.disk.write(0, third, page(7))
    mount.come_back()
    mount.disk.write(0, third, page(7))
    assert mount.disk.flush(PATIENCE_S)
    assert (mount.read(third) == page(7)).all(), "written again where the late deletion has met the new page"


def test_a_reset_that_hangs_leaves_nothing_to_be_found(mount):
    engine = mount.engine()
    mount.hangs = True
    assert engine.kv.reset()
    mount.now += STUCK_S + 0.1
    assert engine.run(range(300, 333)) == 0
    mount.come_back()
    assert engine.run(FIRST) == 0 and engine.run(OTHER) == 0


def test_a_call_with_a_defect_has_the_answer_of_a_late_one(caplog):
    calls = LimitedCalls()

    def fail():
        raise ValueError("a defect")

    with caplog.at_level("ERROR", "core"):
        assert calls.ask(fail, late=True) is True
    assert "failed" in caplog.text
    assert calls.ask(lambda: False, late=True) is False and not calls.is_late
    calls.close()
    assert calls.ask(lambda: False, late=True) is True


def test_pages_of_earlier_processes_are_not_written_again(mount):
    first = key(1)
    mount.disk.write(0, first, page(1))
    assert mount.disk.flush()
    mount.disk.writer.placed.clear()
    before = (mount.disk.directory / f"{first.digest.hex()}-0.kv").stat().st_ino
    mount.disk.write(0, first, page(1))
    assert mount.disk.flush() and mount.disk.holds(0, first)
    assert (mount.disk.directory / f"{first.digest.hex()}-0.kv").stat().st_ino == before


def test_a_directory_that_does_not_answer_is_refused(tmp_path, monkeypatch):
    go = threading.Event()

    def hang(directory, *args, **kwargs):
        directory._root = directory._own = -1
        go.wait(PATIENCE_S)

    monkeypatch.setattr("core_kv_connectors.tiers.disk.OPEN_S", 0.01)
    monkeypatch.setattr(PageDirectory, "__init__", hang)
    with pytest.raises(ConfigError, match=r"--kv-offloading-disk-path .*does not answer"):
        disk_of(tmp_path)
    go.set()
