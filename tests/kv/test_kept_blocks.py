"""Blocks that outlive an engine in a file (`--keep-kv`): the next engine uses them where they lie, and never a wrong one."""

import os

import pytest

from core.api.errors import ConfigError
from core_kv_connectors.kept.file import KeptFile
from core_supervision.link.anonymous_file import anonymous_file
from tests.kv.kept_engine import NUM_BLOCKS, KeptEngine
from tests.kv.tier_fakes import FIRST, OTHER, OTHER_PRINT, Engine


@pytest.fixture
def file():
    descriptor = anonymous_file("test-kv", 0)
    yield descriptor
    os.close(descriptor)


def filled(file, *prompts, **options):
    engine = KeptEngine(file, **options)
    for tokens in prompts:
        engine.run(tokens)
        engine.rest()
    return engine


def test_the_next_engine_uses_the_blocks(file):
    filled(file, FIRST, OTHER)
    following = KeptEngine(file)
    assert following.run(FIRST) == 32
    assert following.run(OTHER) == 32
    assert KeptEngine(file).run(FIRST) == 32, "and the one after it"


def test_blocks_without_a_checksum_are_not_adopted(file):
    engine = filled(file, FIRST)
    engine.run(OTHER)  # the engine is killed before it rests
    following = KeptEngine(file)
    assert following.run(FIRST) == 32
    assert following.run(OTHER) == 0


def test_a_damaged_block_is_computed_again(file, caplog):
    engine = filled(file, FIRST)
    engine.device.blocks[4] ^= 1
    following = KeptEngine(file)
    assert following.run(FIRST) == 12
    assert "changed in memory" in caplog.text
    assert following.run(FIRST) == 32


def test_a_torn_record_counts_as_none(file):
    engine = filled(file, FIRST)
    record = KeptFile.open(file)
    start = record._start(4) + 30
    os.pwrite(file, b"\xff\xfe\xfd\xfc", start)
    assert KeptEngine(file).run(FIRST) == 12
    assert engine.kept is not None


@pytest.mark.parametrize("change", [{"fingerprint": OTHER_PRINT}, {"num_blocks": NUM_BLOCKS + 1}])
def test_blocks_of_other_values_or_another_layout_are_dropped(file, change):
    filled(file, FIRST)
    assert KeptEngine(file, **change).run(FIRST) == 0
    assert KeptEngine(file).run(FIRST) == 0


def test_blocks_that_were_evicted_or_forgotten_are_not_adopted(file):
    engine = filled(file, FIRST, OTHER)
    for start in range(200, 800, 100):
        engine.run(range(start, start + 33))
    following = KeptEngine(file)
    assert following.run(FIRST) == 0
    engine = filled(file, FIRST)
    assert engine.kv.reset()
    assert KeptEngine(file).run(FIRST) == 0
    engine = filled(file, FIRST)
    engine.kept.use_weights(None, lambda: OTHER_PRINT)
    assert KeptEngine(file).run(FIRST) == 0


def test_the_order_of_eviction_goes_on(file):
    engine = filled(file, FIRST, OTHER)
    engine.run(FIRST)
    engine.rest()
    following = KeptEngine(file)
    following.run(range(300, 320))  # three blocks are free, two more are evicted: the newest of the other prompt
    assert following.run(FIRST) == 32
    assert 0 < KeptEngine(file).run(OTHER) < 32


def test_a_scheduler_that_starts_over_begins_empty(file):
    engine = filled(file, FIRST)
    Engine(engine.kv.connectors, NUM_BLOCKS)
    assert KeptEngine(file).run(FIRST) == 0


def test_a_file_that_no_memory_lies_in_is_refused(file):
    with pytest.raises(ConfigError, match="--keep-kv: this executor has its KV cache elsewhere"):
        KeptFile.open(file)
