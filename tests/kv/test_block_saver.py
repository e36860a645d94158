"""Cached blocks reach the disk while the engine runs: an engine that is killed loses little."""

import pytest

from core.kv.connectors import KVConnectors
from core.kv.sequence import KVSequence
from core_kv_connectors.tiers.page_directory import page_name
from tests.kv.connector_rows import tiers_of
from tests.kv.tier_fakes import FIRST, OTHER, PAGE_BYTES, Engine, config_of, look_up


class World:
    """An engine with a disk, as its process drives it."""

    def __init__(self, path, num_blocks=40, **cache):
        config = config_of("m", block_size=4, disk_path=str(path), disk_bytes=1 << 20, **cache)
        self.services = KVConnectors.open(config, "n", PAGE_BYTES)
        self.engine = Engine(self.services, num_blocks)
        self.tiers = tiers_of(self.services)
        self.kv, self.disk = self.engine.kv, self.tiers.disk

    def idle(self, copy=None, limit=1000):
        """Idle time until nothing is left to do."""
        while self.services.save_idle(self.kv, copy or self.engine.device.copy) is not None:
            limit -= 1
            assert limit > 0, "saving comes to an end"
            self.disk.flush()
            self.kv.check_integrity([])

    def close(self):
        self.services.close(self.kv, self.engine.device.copy, 10.0)

    def on_disk(self, tokens):
        """Which full blocks of these tokens have a file."""
        keys = [self.kv.key(KVSequence(list(tokens)), index) for index in range(len(tokens) // 4)]
        return [(self.disk.directory / page_name(0, key)).exists() for key in keys]


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.close()


def test_an_engine_that_is_killed_finds_its_prefixes_again(world, tmp_path):
    world.engine.run(FIRST)
    world.engine.run(OTHER)
    world.idle()
    again = World(tmp_path)
    assert again.engine.run(FIRST) == again.engine.run(OTHER) == 32
    again.close()


def test_each_block_is_saved_once_and_only_to_the_disk(tmp_path):
    world = World(tmp_path, host_bytes=1 << 20)
    world.engine.run(FIRST)
    world.idle()
    assert world.tiers.num_saved == 8 and len(world.tiers.host) == 0
    world.engine.run([*FIRST, 5])
    world.idle()
    assert world.tiers.num_saved == 8
    world.close()


def test_blocks_keep_their_order_and_nobody_is_evicted(world):
    world.engine.run(FIRST)
    world.engine.run(OTHER)
    order = list(world.kv.pool._evictable)
    world.idle()
    assert list(world.kv.pool._evictable) == order and world.engine.run(FIRST) == 32
    assert world.kv.num_external_tokens == 0


def test_what_leaves_the_pool_still_reaches_host_memory(tmp_path):
    world = World(tmp_path, num_blocks=10, host_bytes=1 << 20)
    world.engine.run(FIRST)
    world.idle()
    world.engine.run(OTHER)
    assert len(world.tiers.host) == 8, "although the disk has it"
    world.close()


def test_while_steps_go_on_saving_takes_a_hundredth_of_their_time_heads_first(tmp_path, monkeypatch):
    """A page that costs 2 ms is saved about five times in a second of steps."""
    now = 1000.0
    monkeypatch.setattr("core_kv_connectors.block_saver.time.monotonic", lambda: now)
    monkeypatch.setattr("core_kv_connectors.block_saver.BYTE_S", 0.002 / PAGE_BYTES)
    monkeypatch.setattr("core_kv_connectors.tiers.disk.DiskTier.write_byte_s", 0.0)
    world = World(tmp_path)
    world.engine.run(FIRST)
    for step in range(100):
        now += 0.01
        world.services.after_step(world.kv)
        transfers = world.kv.take_transfers()
        if transfers is not None:
            assert len(transfers.saves) == 1
            world.kv.settle_transfers(transfers, world.engine.device.copy(transfers))
        world.disk.flush()
        saved = world.on_disk(FIRST)
        assert saved == sorted(saved, reverse=True), "heads first"
        assert sum(saved) <= 1 + (step + 1) * 0.01 * 5
    assert 4 <= sum(saved) < 8
    world.close()


def test_the_newest_turn_is_saved_before_older_prefixes_its_head_first(world):
    world.engine.run(OTHER)
    world.engine.run(FIRST)
    for count in range(1, 9):
        world.tiers.save_some(world.kv, 1)
        world.kv.copy_now(world.engine.device.copy)
        world.disk.flush()
        assert world.on_disk(FIRST) == [True] * count + [False] * (8 - count)
    assert not any(world.on_disk(OTHER))


@pytest.mark.parametrize("room", [8, 20])
def test_a_sleep_that_keeps_host_memory_fills_it_with_what_a_next_turn_needs(tmp_path, room):
    config = config_of("m", block_size=4, host_bytes=room * PAGE_BYTES)
    services = KVConnectors.open(config, "n", PAGE_BYTES)
    engine = Engine(services, num_blocks=40)
    engine.run(OTHER)
    engine.run(FIRST)
    services.notify("save_for_sleep", engine.kv, engine.device.copy, 10.0, keeps_memory=True)
    again = Engine(services, num_blocks=40)
    assert again.run(FIRST) == 32
    assert again.run(OTHER) == (32 if room == 20 else 0)
    services.close(again.kv, again.device.copy, 1.0)


def test_a_sleep_that_drops_host_memory_saves_to_the_disk_alone(world, tmp_path):
    world.engine.run(FIRST)
    world.services.notify("save_for_sleep", world.kv, world.engine.device.copy, 10.0, keeps_memory=False)
    world.disk.flush()
    assert all(world.on_disk(FIRST))


def test_a_running_sequence_is_saved_too(world):
    sequence = KVSequence(list(FIRST))
    world.kv.attach(sequence, look_up(world.kv, sequence))
    world.kv.allocate_slots(sequence, len(sequence.token_ids))
    sequence.num_computed_tokens = len(sequence.token_ids)
    world.services.after_step(world.kv)
    assert world.kv.take_transfers().saves == [sequence.block_ids[0][0]]
    world.kv.free(sequence)


@pytest.mark.parametrize("when", ["waits", "under way", "written"])
def test_values_that_turn_out_wrong_leave_the_disk(world, when):
    sequence = KVSequence(list(FIRST))
    world.kv.attach(sequence, look_up(world.kv, sequence))
    world.kv.allocate_slots(sequence, len(sequence.token_ids))
    sequence.num_computed_tokens = len(sequence.token_ids)
    world.services.after_step(world.kv)
    transfers = None if when == "waits" else world.kv.take_transfers()
    if when == "written":
        world.kv.settle_transfers(transfers, world.engine.device.copy(transfers))
        world.disk.flush()
        assert world.on_disk(FIRST)[0]
    world.kv.free(sequence, keep_cached=False)
    if when == "waits":
        transfers = world.kv.take_transfers()
    if when != "written":
        world.kv.settle_transfers(transfers, world.engine.device.copy(transfers))
    world.disk.flush()
    assert not any(world.on_disk(FIRST)) and world.engine.run(FIRST) == 0


def test_copies_that_fail_are_made_up_for(world):
    world.engine.run(FIRST)
    assert world.services.save_idle(world.kv, lambda transfers: None) is None
    assert not any(world.on_disk(FIRST))
    world.idle()
    assert all(world.on_disk(FIRST))


@pytest.mark.parametrize("how", ["idle", "close"])
def test_blocks_chosen_after_the_last_step_are_saved_although_no_step_follows(tmp_path, how):
    world = World(tmp_path)
    world.engine.run(FIRST)
    world.tiers.save_some(world.kv, 100)
    getattr(world, how)()
    assert all(world.on_disk(FIRST))
    world.close()


def test_pages_that_a_disk_refused_follow_when_it_works_again(world, monkeypatch):
    monkeypatch.setattr("core_kv_connectors.tiers.rest.FIRST_S", 0.01)
    writer, failures = world.disk.writer, iter(range(3))
    store = writer._store

    def fail(*args):
        if next(failures, None) is not None:
            raise OSError(5, "Input/output error")
        store(*args)

    monkeypatch.setattr(writer, "_store", fail)
    world.engine.run(FIRST)
    world.idle(limit=100_000)
    assert world.disk.num_dropped == 3 and all(world.on_disk(FIRST))


def test_a_disk_that_fails_wakes_nobody_often(world, monkeypatch):
    monkeypatch.setattr("core_kv_connectors.tiers.rest.FIRST_S", 30.0)
    world.engine.run(FIRST)
    world.disk.writer.rest.begin()
    assert world.services.save_idle(world.kv, world.engine.device.copy) > 20_000


def test_without_a_disk_there_is_nothing_to_do_in_idle_time():
    services = KVConnectors.open(config_of("m", host_bytes=1 << 20), "n", PAGE_BYTES)
    engine = Engine(services, num_blocks=20)
    engine.run(FIRST)
    services.after_step(engine.kv)
    assert services.save_idle(engine.kv, engine.device.copy) is None
    assert engine.kv.take_transfers() is None


def test_at_the_end_the_rest_is_written(tmp_path):
    world = World(tmp_path)
    world.engine.run(FIRST)
    world.close()
    again = World(tmp_path)
    assert again.engine.run(FIRST) == 32
    again.close()


def test_the_end_does_not_wait_for_a_disk_that_fails(world, monkeypatch):
    """Nor does it go round in circles until its time is over."""
    copies = []
    world.engine.run(FIRST)
    monkeypatch.setattr("core_kv_connectors.tiers.rest.FIRST_S", 1000.0)
    world.disk.writer.rest.begin()
    world.services.close(world.kv, copies.append, 60.0)
    assert copies == []
