"""The block pool: where blocks come from, who keeps them, and what is evicted first."""

import tracemalloc
from collections import Counter

import pytest

from core.api.errors import ConfigError
from core.kv.block_pool import BlockPool
from core.kv.hashing import PrefixHasher
from core.kv.integrity import IntegrityError

HASHER = PrefixHasher()


def key(number):
    return HASHER.key(b"root", [number])


def cache_and_free(pool, count):
    block_ids = pool.allocate(count)
    for block_id in block_ids:
        pool.cache(key(block_id), block_id)
    pool.free(reversed(block_ids))
    return block_ids


def test_hands_out_every_block_but_the_null_block_once():
    pool = BlockPool(10)
    block_ids = pool.allocate(4) + pool.allocate(1) + pool.allocate(4)
    assert sorted(block_ids) == list(range(1, 10))
    assert pool.num_free == 0
    pool.check_integrity(Counter(block_ids))


def test_more_than_is_free_is_refused_without_change():
    pool = BlockPool(4)
    pool.allocate(2)
    with pytest.raises(IntegrityError, match="2 blocks were asked for, 1 are free"):
        pool.allocate(2)
    assert pool.num_free == 1


def test_allocating_nothing_gives_nothing():
    pool = BlockPool(4)
    pool.free(pool.allocate(3))
    assert pool.allocate(0) == []
    assert pool.num_free == 3


def test_a_pool_needs_two_blocks():
    with pytest.raises(ConfigError, match="at least 2"):
        BlockPool(1)


def test_freeing_twice_is_caught():
    pool = BlockPool(4)
    block_ids = pool.allocate(1)
    pool.free(block_ids)
    with pytest.raises(IntegrityError, match="reference_counts"):
        pool.free(block_ids)


def test_shared_blocks_stay_until_the_last_user_leaves():
    pool = BlockPool(4)
    block_ids = pool.allocate(2)
    pool.touch(block_ids)
    pool.free(block_ids)
    assert pool.num_free == 1
    pool.free(block_ids)
    assert pool.num_free == 3


def test_uncached_and_fresh_blocks_go_before_cached_ones():
    pool = BlockPool(8)
    cached = cache_and_free(pool, 3)
    loose = pool.allocate(2)
    pool.free(loose)
    assert not set(pool.allocate(4)) & set(cached)
    assert len(pool.prefixes) == 3


def test_least_recently_freed_is_evicted_first_and_tails_before_heads():
    pool = BlockPool(6)
    first = cache_and_free(pool, 2)
    second = cache_and_free(pool, 3)
    assert pool.allocate(5) == [*reversed(first), *reversed(second)]
    assert len(pool.prefixes) == 0


def test_a_touched_block_is_not_evicted():
    pool = BlockPool(4)
    cached = cache_and_free(pool, 3)
    pool.touch(cached[:1])
    assert pool.num_free == 2
    assert cached[0] not in pool.allocate(2)
    assert pool.prefixes.find(key(cached[0])) == cached[0]
    pool.check_integrity(Counter(range(1, 4)))


def test_the_first_block_of_a_key_stays():
    pool = BlockPool(4)
    first, second = pool.allocate(2)
    pool.cache(key(7), first)
    pool.cache(key(7), second)
    assert pool.prefixes.find(key(7)) == first
    assert second not in pool.prefixes


def test_reset_needs_an_idle_pool_and_forgets_all():
    pool = BlockPool(6)
    cached = cache_and_free(pool, 3)
    pool.touch(cached[:1])
    assert not pool.reset()
    assert len(pool.prefixes) == 3
    pool.free(cached[:1])
    assert pool.reset()
    assert len(pool.prefixes) == 0
    pool.check_integrity({})
    assert sorted(pool.allocate(5)) == [1, 2, 3, 4, 5]


def test_check_integrity_names_a_leak():
    pool = BlockPool(4)
    pool.allocate(1)
    with pytest.raises(IntegrityError, match="reference_counts"):
        pool.check_integrity({})


def test_a_pool_of_a_million_blocks_costs_nothing_until_used():
    tracemalloc.start()
    pool = BlockPool(10**6)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6
    assert len(pool.allocate(1000)) == 1000
