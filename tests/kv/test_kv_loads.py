"""Pages from a slow disk are waited for, never in a look-up, and what does not come is computed."""

import itertools
import threading

import pytest

from core.api.kv_load import KVLoad
from core.kv.connectors import KVConnectors
from core.kv.loads import MAX_LOAD_S
from core.kv.prefix_hit import PrefixHit
from core.kv.sequence import KVSequence
from core_kv_connectors.tiers import disk, page_memory, page_reader
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.page_reader import STUCK_S
from core_kv_connectors.tiers.tiers import KVTiers
from tests.kv.tier_fakes import FIRST, OTHER, PAGE_BYTES, Engine, disk_of, key, look_up

PATIENCE_S = 20.0


class SlowDisk:
    """A disk that has given its pages to a test: a read waits until `go` is set.

    begun: a read has begun. num_reads: pages asked for. broken: indices of reads that find nothing.
    """

    def __init__(self, disk):
        self._disk = disk
        self.go = threading.Event()
        self.begun = threading.Event()
        self.num_reads = 0
        self.broken = set()

    def __getattr__(self, name):
        return getattr(self._disk, name)

    def read(self, group, key):
        number = self.num_reads
        self.num_reads += 1
        self.begun.set()
        assert self.go.wait(PATIENCE_S)
        return None if number in self.broken else self._disk.read(group, key)


def test_a_hit_says_which_pages_came_from_where(tmp_path):
    """Of the pages that a sequence gets back, those in host memory and those that it waited for are told apart."""
    disk = disk_of(tmp_path)
    tiers = KVTiers(HostTier(3 * PAGE_BYTES), disk)
    engine = Engine(tiers, num_blocks=10)
    for tokens in (FIRST, OTHER):
        engine.run(tokens)
        assert disk.flush()
    sequence = KVSequence(list(FIRST))
    hit = look_up(engine.kv, sequence)
    in_host = {load.entry for load in hit.loads if not load.was_awaited}
    assert len(hit.loads) == hit.num_tokens // 4
    assert 0 < len(in_host) <= 3 < len(hit.loads)
    tiers.close()


class World:
    """An engine that finds FIRST and OTHER on a slow disk, and a clock that stands still."""

    def __init__(self, path, host=None):
        tiers = KVTiers(None, disk_of(path))
        before = Engine(tiers, num_blocks=10)
        for tokens in (FIRST, OTHER, FIRST):
            before.run(tokens)
            assert tiers.disk.flush()
        tiers.close()
        self.now = 100.0
        self.disk = SlowDisk(disk_of(path))
        self.tiers = KVTiers(host, self.disk, clock=lambda: self.now)
        self.connectors = KVConnectors([self.tiers], clock=lambda: self.now)
        self.engine = Engine(self.connectors, num_blocks=40)
        self.kv = self.engine.kv

    def await_load(self, sequence):
        while not self.kv.loads.is_over(sequence.load):
            self.kv.loads.wait(PATIENCE_S)

    def begin(self, tokens=FIRST):
        """A sequence that waits for its pages."""
        sequence = KVSequence(list(tokens))
        assert isinstance(self.kv.lookup(sequence), KVLoad)
        return sequence

    def close(self):
        self.disk.go.set()
        self.tiers.close()


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.close()


def test_a_look_up_does_not_wait_for_the_disk(world):
    sequence = world.begin()
    assert world.disk.begun.wait(PATIENCE_S)
    assert world.kv.lookup(sequence) is sequence.load and not world.kv.loads.is_over(sequence.load)
    assert world.kv.pool.num_free == world.kv.pool.capacity, "who waits holds no block"
    unknown = KVSequence(list(range(500, 540)))
    assert world.kv.lookup(unknown) == PrefixHit(0, [[]]), "a prompt that the disk does not have is computed at once"
    world.disk.go.set()
    world.await_load(sequence)
    hit = world.kv.lookup(sequence)
    assert hit.num_tokens == 32 and len(hit.loads) == 8
    world.kv.attach(sequence, hit)
    assert sequence.load is None and world.tiers.pages.reader.num_bytes == 0
    world.kv.check_integrity([sequence])
    world.kv.free(sequence)


def test_a_page_that_cannot_be_read_ends_the_prefix(world):
    world.disk.broken = {5}
    world.disk.go.set()
    assert world.engine.run(FIRST) == 20


def test_pages_of_memory_and_disk_make_one_prefix(world):
    world.disk.go.set()
    world.engine.run(FIRST[:17])
    assert world.kv.num_external_tokens == 16
    assert world.engine.run(FIRST) == 32
    assert world.kv.num_external_tokens == 32 and world.disk.num_reads == 8


def test_blocks_that_are_evicted_during_a_wait_are_computed(world):
    world.disk.go.set()
    world.engine.run(FIRST[:17])
    world.disk.go.clear()
    sequence = world.begin()
    world.kv.forget(block_id for block_id, _, _ in world.kv.pool.prefixes.entries())
    world.disk.go.set()
    world.await_load(sequence)
    assert world.kv.lookup(sequence).num_tokens == 0


def test_who_does_not_wait_any_more_leaves_nothing_behind(world):
    first, second = world.begin(), world.begin(OTHER)
    assert world.disk.begun.wait(PATIENCE_S)
    world.kv.free(first)
    world.disk.go.set()
    world.await_load(second)
    assert world.kv.lookup(second).num_tokens == 32 and first.load is None
    world.kv.free(second)
    assert world.tiers.pages.reader.num_bytes == 0 and world.disk.num_reads == 9
    world.kv.check_integrity([])


def test_a_wait_has_an_end_and_what_came_by_then_is_used(world):
    reads = threading.Semaphore(3)
    real = world.disk.read

    def three_pages(group, key):
        if reads.acquire(blocking=False):
            world.disk.go.set()
        else:
            world.disk.go.clear()
            came.set()
        return real(group, key)

    came = threading.Event()
    world.disk.read = three_pages
    sequence = world.begin()
    assert came.wait(PATIENCE_S) and not world.kv.loads.is_over(sequence.load)
    world.now += MAX_LOAD_S
    assert world.kv.loads.is_over(sequence.load)
    hit = world.kv.lookup(sequence)
    assert hit.num_tokens == 12
    world.disk.go.set()
    assert world.kv.lookup(sequence) == hit, "what comes later is not mixed in"


def test_a_disk_that_does_not_answer_is_waited_for_by_nobody_else(world):
    sequence = world.begin()
    assert world.disk.begun.wait(PATIENCE_S)
    behind = world.begin(OTHER)
    world.now += STUCK_S + 0.1
    assert not world.kv.loads.is_over(sequence.load)
    assert not world.disk.may_be_read, "not even for what it has: that might take as long"
    assert world.kv.lookup(KVSequence(list(OTHER))).num_tokens == 0
    world.now += MAX_LOAD_S
    assert world.kv.loads.is_over(sequence.load) and world.kv.loads.is_over(behind.load)
    assert world.kv.lookup(sequence).num_tokens == world.kv.lookup(behind).num_tokens == 0


def test_a_disk_that_answers_late_is_asked_again(world, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    real = disk.read_page

    def slow(*args):
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return real(*args)

    monkeypatch.setattr(disk, "read_page", slow)
    world.disk.go.set()
    sequence = world.begin()
    assert begun.wait(PATIENCE_S)
    world.now += STUCK_S + 0.1
    assert not world.kv.loads.is_over(sequence.load) and not world.disk.may_be_read
    go_on.set()
    world.await_load(sequence)
    assert world.disk.may_be_read
    assert world.engine.run(OTHER) == 32


def test_memory_is_made_ready_for_as_many_pages_as_the_disk_has(tmp_path, monkeypatch):
    World(tmp_path).close()
    disk = disk_of(tmp_path)
    assert len(list(disk.prepare())) == 16
    monkeypatch.setattr(page_memory, "MAX_AHEAD_BYTES", 3 * PAGE_BYTES)
    assert len(list(disk.prepare())) == 3
    disk.close()


def test_a_load_does_not_wait_until_memory_is_ready(tmp_path):
    class EndlessDisk(SlowDisk):
        def prepare(self):
            return itertools.repeat(None)

    World(tmp_path).close()
    disk = EndlessDisk(disk_of(tmp_path))
    disk.go.set()
    tiers = KVTiers(None, disk)
    assert Engine(tiers, num_blocks=40).run(FIRST) == 32
    tiers.close()


def test_memory_that_cannot_be_made_ready_costs_nothing_else(tmp_path, caplog):
    class DefectiveDisk(SlowDisk):
        def prepare(self):
            raise MemoryError

    World(tmp_path).close()
    disk = DefectiveDisk(disk_of(tmp_path))
    disk.go.set()
    tiers = KVTiers(None, disk)
    assert Engine(tiers, num_blocks=40).run(FIRST) == 32
    assert "made ready" in caplog.text
    tiers.close()


def test_a_reset_ends_waiting(world):
    sequence = world.begin()
    assert world.disk.begun.wait(PATIENCE_S)
    assert world.kv.reset()
    world.disk.go.set()
    world.kv.loads.wait(PATIENCE_S)
    assert world.kv.loads.is_over(sequence.load) and world.kv.lookup(sequence).num_tokens == 0


def test_pages_that_are_held_delay_the_next_load(world, monkeypatch):
    monkeypatch.setattr(page_reader, "MAX_HELD_BYTES", PAGE_BYTES)
    world.disk.go.set()
    first, second = world.begin(), world.begin(OTHER)
    world.await_load(first)
    assert world.disk.num_reads == 8 and not second.load.is_done
    world.kv.attach(first, world.kv.lookup(first))
    world.await_load(second)
    assert world.kv.lookup(second).num_tokens == 32
    world.kv.free(first)
    world.kv.free(second)


def test_wrong_values_reach_nobody_who_waits(tmp_path):
    world = World(tmp_path, HostTier(1 << 20))
    world.disk.go.set()
    sequence = world.begin()
    world.await_load(sequence)
    third = world.kv.key(sequence, 3)
    assert world.tiers.host.contains(0, third), "what was read stays in host memory"
    world.kv.save(1, 0, third, world.tiers)
    world.connectors.removed(1, 0, third, valid=False)
    assert world.kv.lookup(sequence).num_tokens == 12
    assert not world.tiers.host.contains(0, third) and not world.disk.contains(0, third)
    world.kv.free(sequence)
    world.close()


def test_a_defect_of_a_disk_costs_one_load(world, caplog):
    def fail(group, key):
        raise ValueError("a defect")

    real, world.disk.read = world.disk.read, fail
    with caplog.at_level("ERROR", "core"):
        assert world.engine.run(FIRST) == 0
    assert "could not be loaded" in caplog.text
    world.disk.read = real
    world.disk.go.set()
    assert world.engine.run(OTHER) == 32


def test_host_memory_answers_at_once():
    tiers = KVTiers(HostTier(1 << 20))
    engine = Engine(tiers, num_blocks=10)
    engine.run(FIRST)
    engine.run(OTHER)
    assert isinstance(engine.kv.lookup(KVSequence(list(FIRST))), PrefixHit)
    assert not tiers.pages.answers() and tiers.pages.read(0, key(1)) is None
    assert look_up(engine.kv, KVSequence(list(FIRST))).num_tokens == 32
