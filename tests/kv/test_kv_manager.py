"""The KV manager: growth, prefix hits and what survives a sequence."""

import pytest

from core.api.errors import ConfigError
from core.kv.integrity import IntegrityError
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence


def compute(kv, tokens, salt=None):
    """A sequence whose tokens have all been computed."""
    sequence = KVSequence(list(tokens), salt)
    kv.attach(sequence, kv.lookup(sequence))
    assert kv.allocate_slots(sequence, len(tokens) - sequence.num_computed_tokens) is not None
    sequence.num_computed_tokens = len(tokens)
    return sequence


def num_hit(kv, tokens, salt=None):
    """Blocks of `tokens` that the cache has."""
    return kv.lookup(KVSequence(list(tokens), salt)).num_tokens // kv.block_size


def test_slots_come_in_blocks_and_only_when_needed():
    kv = KVManager(10, 4)
    sequence = KVSequence(list(range(6)))
    (appended,) = kv.allocate_slots(sequence, 6)
    assert len(appended) == 2 and sequence.block_ids == [appended]
    sequence.num_computed_tokens = 6
    assert kv.allocate_slots(sequence, 2) == []
    assert len(kv.allocate_slots(sequence, 2, 1)[0]) == 1
    assert sequence.num_slots == 12
    assert kv.usage == pytest.approx(3 / 9)


def test_a_full_pool_answers_none_and_changes_nothing():
    kv = KVManager(4, 4)
    sequence = KVSequence(list(range(20)))
    assert kv.allocate_slots(sequence, 13) is None
    assert sequence.block_ids == []
    assert len(kv.allocate_slots(sequence, 12)[0]) == 3
    assert kv.usage == 1.0


def test_full_blocks_of_a_running_sequence_are_found():
    kv = KVManager(20, 4)
    first = compute(kv, range(10))
    second = KVSequence([*range(8), 99, 98])
    hit = kv.lookup(second)
    assert hit.block_ids == [first.block_ids[0][:2]]
    kv.attach(second, hit)
    assert second.num_computed_tokens == 8
    kv.check_integrity([first, second])


def test_tokens_not_yet_computed_are_not_found():
    kv = KVManager(20, 4)
    first = KVSequence(list(range(12)))
    kv.attach(first, kv.no_hit())
    kv.allocate_slots(first, 12)
    first.num_computed_tokens = 4
    assert num_hit(kv, range(12)) == 1
    first.num_computed_tokens = 12
    assert num_hit(kv, range(13)) == 3


def test_one_token_is_always_left_to_compute():
    kv = KVManager(20, 4)
    first = compute(kv, range(8))
    kv.free(first)
    assert num_hit(kv, range(8)) == 1
    assert num_hit(kv, range(9)) == 2


def test_a_finished_sequence_leaves_its_prefix_behind():
    kv = KVManager(20, 4)
    kv.free(compute(kv, range(8)))
    assert kv.usage == 0.0
    again = compute(kv, range(10))
    assert kv.num_query_tokens == 18
    assert kv.num_hit_tokens == 8
    kv.check_integrity([again])


def test_generated_tokens_are_found_once_their_sequence_has_left():
    kv = KVManager(20, 4)
    sequence = compute(kv, range(6))
    sequence.token_ids += range(6, 12)
    kv.allocate_slots(sequence, 6)
    sequence.num_computed_tokens = 12
    assert num_hit(kv, range(13)) == 1
    kv.free(sequence)
    assert num_hit(kv, range(13)) == 3


def test_untrusted_blocks_are_not_kept():
    kv = KVManager(20, 4)
    kv.free(compute(kv, range(8)), keep_cached=False)
    assert num_hit(kv, range(10)) == 0


def test_different_salts_share_nothing():
    kv = KVManager(20, 4)
    kv.free(compute(kv, range(8), "tenant a"))
    assert num_hit(kv, range(10), "tenant b") == 0
    assert num_hit(kv, range(10)) == 0
    assert num_hit(kv, range(10), "tenant a") == 2


def test_the_head_of_a_prefix_survives_its_tail():
    kv = KVManager(6, 4)
    kv.free(compute(kv, range(20)))
    other = compute(kv, range(100, 112))
    assert num_hit(kv, range(20)) == 2
    kv.check_integrity([other])


def test_hits_that_must_be_taken_out_of_the_free_blocks_count_as_needed():
    kv = KVManager(6, 4)
    kv.free(compute(kv, range(16)))
    hit = kv.lookup(KVSequence(list(range(17))))
    assert hit.num_tokens == 16
    assert kv.blocks_missing(hit, 17) == 5
    assert kv.blocks_missing(kv.no_hit(), 17) == 5


def test_switched_off_nothing_is_found():
    kv = KVManager(20, 4, enable_prefix_caching=False)
    kv.free(compute(kv, range(8)))
    assert num_hit(kv, range(8)) == 0


def test_reset_forgets_prefixes():
    kv = KVManager(20, 4)
    sequence = compute(kv, range(8))
    assert not kv.reset()
    kv.free(sequence)
    assert kv.reset()
    assert num_hit(kv, range(9)) == 0


def test_check_integrity_sees_a_block_in_two_tables():
    kv = KVManager(20, 4)
    first, second = compute(kv, range(8)), compute(kv, range(50, 58))
    second.block_ids[0][0] = first.block_ids[0][0]
    with pytest.raises(IntegrityError, match="reference_counts"):
        kv.check_integrity([first, second])


def test_a_block_needs_a_size():
    with pytest.raises(ConfigError, match="block size is 0"):
        KVManager(20, 0)
