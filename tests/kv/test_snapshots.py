"""At which edges states are kept, how long, and what a hit needs of them."""

from core.api.specs import KVGroup
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence

FULL = KVGroup("full", (0,))
STATE = KVGroup("state", (1,), num_state_blocks=2)


def make(num_blocks: int = 100, interval: int = 8, every: int = 0) -> KVManager:
    return KVManager(num_blocks, 4, groups=(FULL, STATE), snapshot_interval=interval, snapshot_every=every)


def compute(kv: KVManager, tokens: list[int], most: int = 1000) -> tuple[KVSequence, list[int]]:
    """A sequence whose known tokens are computed, and where its chunks began."""
    sequence = KVSequence(list(tokens))
    hit = kv.lookup_now(sequence)
    kv.attach(sequence, hit)
    begins = []
    while sequence.num_computed_tokens < len(tokens):
        begin = sequence.num_computed_tokens
        kv.snapshots.keep(sequence, begin)
        count = kv.snapshots.chunk(sequence, begin, min(most, len(tokens) - begin))
        assert kv.allocate_slots(sequence, count) is not None
        kv.snapshots.release()
        sequence.num_computed_tokens += count
        begins.append(begin)
    return sequence, begins


def generate(kv: KVManager, sequence: KVSequence, count: int) -> None:
    for _ in range(count):
        sequence.token_ids.append(7)
        kv.snapshots.keep(sequence, sequence.num_computed_tokens)
        assert kv.allocate_slots(sequence, 1) is not None
        kv.take_copies()
        sequence.num_computed_tokens += 1


def found(kv: KVManager, tokens: list[int]) -> int:
    return kv.lookup_now(KVSequence([*tokens, 99])).num_tokens


def test_a_prompt_is_cut_at_its_last_edge():
    kv = make()
    prompt = list(range(30))
    first, begins = compute(kv, prompt)
    assert begins == [0, 28]
    assert found(kv, prompt) == 28
    kv.free(first)
    assert found(kv, prompt) == 28
    _, begins = compute(kv, prompt)
    assert begins == [28], "what was found is not cut again"


def test_chunks_end_at_edges_which_are_kept_far_enough_from_each_other():
    kv = make(interval=12)
    _, begins = compute(kv, list(range(40)), 9)
    assert begins == [0, 9, 16, 25, 32, 36], "8 of 9 would be too few, but the last edge is kept"
    for length, expected in ((17, 16), (33, 32), (31, 16), (15, 0)):
        assert found(kv, list(range(length))) == expected


def test_where_prompts_part_a_state_is_kept_for_the_third():
    kv = make()
    shared = list(range(22))
    _, begins = compute(kv, [*shared, *range(50, 70)])
    assert begins == [0, 40]
    _, begins = compute(kv, [*shared, *range(70, 90)])
    assert begins == [0, 20, 40]
    third, begins = compute(kv, [*shared, *range(30, 45)])
    assert begins == [20, 36] and third.num_shared_blocks == 5


def test_of_generated_tokens_the_newest_two_states_are_kept():
    kv = make()
    sequence, _ = compute(kv, list(range(10)))
    generate(kv, sequence, 31)
    assert sequence.snapshots == [8, 36, 40]
    known = list(sequence.token_ids)
    kv.free(sequence)
    assert [found(kv, known[:length]) for length in (41, 40, 39, 35)] == [40, 40, 36, 8]


def test_the_state_at_the_very_end_is_kept_without_a_copy():
    kv = make()
    sequence, _ = compute(kv, list(range(12)))
    assert sequence.snapshots == [8]
    kv.take_copies()
    kv.free(sequence, at_rest=True)
    assert found(kv, list(range(12))) == 12 and kv.take_copies() == []
    kv.check_integrity([])


def test_a_state_is_evicted_whole():
    kv = make(14)
    sequence, _ = compute(kv, list(range(10)))
    first, second = kv.snapshots.find(kv.key(sequence, 1))
    kv.take_copies()
    other = KVSequence(list(range(100, 124)))
    kv.attach(other, kv.lookup_now(other))
    assert kv.allocate_slots(other, 22) is not None
    assert kv.snapshots.find(kv.key(sequence, 1)) == []
    held = {block_id for ids in other.block_ids for block_id in ids}
    assert first in held and kv.pool.num_free == 14 - 1 - 5 - 8
    assert second in held or kv.pool.num_free
    kv.check_integrity([sequence, other])


def test_states_of_earlier_turns_thin_out():
    kv, tokens, most = make(2000), [], 0
    for turn in range(30):
        tokens += range(1000 * turn, 1000 * turn + 9)
        sequence, begins = compute(kv, tokens)
        assert len(tokens) - 9 - begins[0] <= 4 or not turn, "the turn before is all there"
        generate(kv, sequence, 14)
        kv.take_copies()
        tokens = list(sequence.token_ids)
        kv.free(sequence, at_rest=True)
        states = [key for _, group, key in kv.pool.prefixes.entries() if group == 2]
        most = max(most, len(states))
    assert most < 14, "instead of three a turn"
    kv.check_integrity([])


def test_a_preemption_costs_no_state_that_a_stop_string_may_cut_back_to():
    kv = make()
    sequence, _ = compute(kv, list(range(6)))
    sequence.max_cut = 24
    generate(kv, sequence, 20)
    for _ in range(2):  # what a sequence keeps before it was preempted is no longer in its list of snapshots
        known = list(sequence.token_ids)
        kv.free(sequence, at_rest=True)
        sequence, _ = compute(kv, known)
        sequence.max_cut = 24
        generate(kv, sequence, 4)
    known = list(sequence.token_ids)
    kv.free(sequence, at_rest=True)
    assert len(known) - 24 == 10
    assert [found(kv, known[:length]) for length in (10, 14, 18, 22, 26, 30)] == [8, 12, 16, 20, 24, 28]


def test_where_several_sequences_began_a_state_stays():
    kv = make(2000)
    shared = list(range(9))
    for branch in range(3):
        sequence, _ = compute(kv, [*shared, *range(1000 * branch, 1000 * branch + 300)])
        generate(kv, sequence, 30)
        kv.free(sequence, at_rest=True)
    assert found(kv, shared) == 8


def test_states_of_a_sequence_that_failed_are_forgotten():
    kv = make()
    sequence, _ = compute(kv, list(range(10)))
    kv.free(sequence, keep_cached=False)
    assert kv.pool.num_free == 99 and len(kv.pool.prefixes) == 0


def test_a_prefix_is_taken_up_where_there_is_room_for_nothing_else():
    """The snapshot is copied in place of being held: a sequence that fits alone fits with its hit."""
    kv = make(10)
    sequence, _ = compute(kv, list(range(17)))
    kv.free(sequence)
    longest = KVSequence(list(range(28)))
    hit = kv.lookup_now(longest)
    assert hit.num_tokens == 16
    assert kv.blocks_missing(hit, 28) == kv.pool.num_free == 9
    kv.attach(longest, hit)
    assert kv.allocate_slots(longest, 12) is not None
    (copy,) = [copy for copy in kv.take_copies() if copy.sources == hit.state]
    assert copy.targets == kv.states.blocks(longest)
    kv.check_integrity([longest])


def test_states_at_regular_distances_are_kept_as_well():
    kv = make(2000, interval=64, every=12)
    sequence, begins = compute(kv, list(range(50)))
    assert begins == [0, 12, 24, 36, 48]
    generate(kv, sequence, 50)
    assert sequence.snapshots == [12, 24, 36, 48, 60, 72, 84, 92, 96], "and the newest two"
    known = list(sequence.token_ids)
    kv.free(sequence, at_rest=True)
    assert [found(kv, known[:length]) for length in (91, 71, 47, 13)] == [84, 60, 36, 12], "none was thinned out"
    kv.check_integrity([])


def test_states_at_every_block():
    kv = make(2000, interval=64, every=4)
    sequence, begins = compute(kv, list(range(21)))
    assert begins == [0, 4, 8, 12, 16, 20]
    generate(kv, sequence, 40)
    known = list(sequence.token_ids)
    kv.free(sequence, at_rest=True)
    assert all(found(kv, known[:length]) == (length) // 4 * 4 for length in range(4, 58))
