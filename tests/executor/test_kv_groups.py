"""KV groups: the division of layers, what a window gives back, and which prefixes all groups can serve."""

import itertools

import pytest

from core.api.specs import KVGroup
from core.kv.groups import UNLIMITED, longest_sequence
from core.kv.growth import SlidingGrowth
from core.kv.integrity import IntegrityError
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence
from core_runtime.specs.kv_groups import group_layers, layer_places, page_bytes

FULL, SLIDING = KVGroup("full", (0,)), KVGroup("sliding", (1,), window=8)
STATE = KVGroup("state", (1,), num_state_blocks=2)


def single_group(num_layers: int) -> tuple[KVGroup, ...]:
    """One group of all layers, which keeps every token."""
    return (KVGroup("full", tuple(range(num_layers))),)


def make(num_blocks=100, groups=(FULL, SLIDING), block_size=4, max_step_tokens=8, **options):
    return KVManager(num_blocks, block_size, groups=groups, max_step_tokens=max_step_tokens, **options)


def admit(kv, tokens):
    """A sequence with all the blocks that an admission takes."""
    sequence = KVSequence(list(tokens))
    hit = kv.lookup(sequence)
    missing, before = kv.blocks_missing(hit, len(sequence.token_ids)), kv.pool.num_free
    kv.attach(sequence, hit)
    assert kv.allocate_slots(sequence, len(sequence.token_ids) - sequence.num_computed_tokens) is not None
    assert before - kv.pool.num_free == missing, "as many as were announced"
    return sequence


def advance(kv, sequence, num_tokens, step=8):
    """Compute up to `num_tokens` tokens in steps, as the scheduler would; returns the most blocks held."""
    most = 0
    while sequence.num_computed_tokens < num_tokens:
        count = min(step, num_tokens - sequence.num_computed_tokens)
        sequence.token_ids += range(len(sequence.token_ids), sequence.num_computed_tokens + count)
        assert kv.allocate_slots(sequence, count) is not None
        kv.check_integrity([sequence])
        most = max(most, kv.pool.capacity - kv.pool.num_free)
        sequence.num_computed_tokens += count
    return most


def test_gemma3_has_one_full_and_five_sliding_groups_of_three_layers():
    windows = [None if index % 6 == 5 else 512 for index in range(18)]
    groups = group_layers(windows, [100] * 18)
    assert [(group.kind, len(group.layers), group.window) for group in groups] == [("full", 3, None)] + [
        ("sliding", 3, 512)
    ] * 5
    assert sorted(layer for group in groups for layer in group.layers) == list(range(18))
    assert page_bytes(groups, [100] * 18) == 300


@pytest.mark.parametrize(
    ("windows", "layer_bytes"), [([None] * 4, [1] * 4), ([None, 8], [1, 2]), ([None] * 3, [1, 2, 3])]
)
def test_equal_kinds_or_unequal_bytes_make_one_group_that_keeps_everything(windows, layer_bytes):
    assert group_layers(windows, layer_bytes) == single_group(len(windows))
    assert page_bytes(single_group(len(windows)), layer_bytes) == sum(layer_bytes)


def test_layers_of_different_widths_share_blocks_where_backends_read_them_apart():
    """Gemma 3's 22 windowed layers in 16 bits beside 4 full ones in 8: a full group is as large as groups of two."""
    windows = [None if index % 6 == 5 else 512 for index in range(26)]
    layer_bytes = [520 if window is None else 1024 for window in windows]
    groups = group_layers(windows, layer_bytes, strided=True)
    assert [(group.kind, len(group.layers)) for group in groups] == [("full", 4)] + [("sliding", 2)] * 11
    assert page_bytes(groups, layer_bytes) == 4 * 576, "layers begin at multiples of 64 bytes"
    places = layer_places(groups, layer_bytes)
    for group in groups:
        spans = [places[layer] for layer in group.layers]
        assert all(
            end - start == layer_bytes[layer] for layer, (_, start, end) in zip(group.layers, spans, strict=True)
        )
        assert all(left[2] <= right[1] and not right[1] % 64 for left, right in itertools.pairwise(spans))
    assert group_layers(windows, layer_bytes) == single_group(26), "without strides"


def test_states_keep_layers_of_different_widths_in_one_group():
    groups = group_layers([None, 8, None], [10, 20, 30], strided=True, states={2})
    assert [(group.kind, group.layers) for group in groups] == [("full", (0, 1)), ("state", (2,))]


def test_layers_without_bytes_are_in_no_group():
    windows = [8, None, 8, None, 8]
    groups = group_layers(windows, [10, 10, 10, 0, 0])
    assert [(group.kind, group.layers) for group in groups] == [("full", (1,)), ("sliding", (0,)), ("sliding", (2,))]
    assert page_bytes(groups, [10, 10, 10, 0, 0]) == 10


def test_one_group_on_request():
    assert group_layers([None, 8], [1, 1], hybrid=False) == single_group(2)


def test_a_model_of_sliding_layers_alone_is_one_group_with_a_window():
    assert group_layers([8] * 3, [1] * 3) == (KVGroup("sliding", (0, 1, 2), 8),)


@pytest.mark.parametrize("counts", [(22, 4), (15, 4), (40, 8), (1, 60), (7, 5, 3)])
def test_groups_are_few_and_every_layer_is_in_one(counts):
    windows = [None if kind == 0 else 8 * kind for kind, count in enumerate(counts) for _ in range(count)]
    groups = group_layers(windows, [1] * len(windows))
    assert len(groups) <= 16
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    for group in groups:
        assert {windows[layer] for layer in group.layers} == {group.window}


def test_lfm2_has_a_full_group_and_states_in_groups_of_equal_size():
    states = {index for index in range(16) if index not in (2, 5, 8, 10, 12, 14)}
    groups = group_layers([None] * 16, [100 if index not in states else 250 for index in range(16)], states=states)
    assert [(group.kind, len(group.layers), group.num_state_blocks) for group in groups] == [
        ("full", 6, 0),
        ("state", 6, 3),
        ("state", 4, 3),
    ]
    assert groups[0].layers == (2, 5, 8, 10, 12, 14)
    assert page_bytes(groups, [100] * 16) == 600, "a state is in blocks of the others' size"


def test_small_states_take_one_block_and_unequal_ones_as_many_as_the_largest_of_their_group():
    groups = group_layers([None] * 5, [100, 5, 400, 5, 100], states={1, 2, 3})
    assert groups == (KVGroup("full", (0, 4)), KVGroup("state", (1, 3), None, 1), KVGroup("state", (2,), None, 4))


@pytest.mark.parametrize("hybrid", [True, False])
def test_windows_and_states_together(hybrid):
    windows = [None, 8, 8, None, None, None]
    groups = group_layers(windows, [10, 10, 10, 30, 30, 30], hybrid=hybrid, states={3, 4, 5})
    kinds = [(group.kind, group.layers, group.window, group.num_state_blocks) for group in groups]
    if hybrid:
        assert kinds[:3] == [("full", (0,), None, 0), ("sliding", (1,), 8, 0), ("sliding", (2,), 8, 0)]
        assert kinds[3:] == [("state", (index,), None, 3) for index in (3, 4, 5)]
    else:
        assert kinds == [("full", (0, 1, 2), None, 0), ("state", (3, 4, 5), None, 3)]


def test_states_alone_are_one_group_whose_block_is_one_state():
    groups = group_layers([None] * 3, [40, 7, 40], states={0, 1, 2})
    assert groups == (KVGroup("state", (1, 0, 2), None, 1),)
    assert page_bytes(groups, [40, 7, 40]) == 87


@pytest.mark.parametrize("num_states", [1, 15, 16, 40, 90])
def test_groups_of_states_are_few(num_states):
    """Beside one layer with keys; where groups are longer than it, its own block is the larger for it."""
    layer_bytes = [100] + [30] * num_states
    groups = group_layers([None] * (1 + num_states), layer_bytes, states=range(1, 1 + num_states))
    assert len(groups) <= 16
    assert sorted(layer for group in groups for layer in group.layers) == list(range(1 + num_states))
    longest = max(len(group.layers) for group in groups)
    assert page_bytes(groups, layer_bytes) == 100 + 30 * (longest - 1)


def test_a_state_costs_its_blocks_once_in_the_plan():
    groups = (KVGroup("full", (0, 1)), KVGroup("state", (2, 3), None, 5))
    assert longest_sequence(groups, 16, 64, 15) == 160
    assert longest_sequence(groups, 16, 64, 5) == 0 == longest_sequence(groups, 16, 64, 4)


def test_blocks_behind_the_window_come_back():
    kv = make()
    sequence = admit(kv, range(4))
    advance(kv, sequence, 200)
    full, sliding = sequence.block_ids
    assert 0 not in full and len(full) == 50
    assert [index for index, block_id in enumerate(sliding) if block_id] == [46, 47, 48, 49]
    kv.free(sequence)
    assert kv.pool.num_free == kv.pool.capacity


def test_a_window_and_a_step_are_all_that_a_long_prompt_takes_of_a_sliding_group():
    kv = make(61)
    growth = kv.growth[1]
    assert isinstance(growth, SlidingGrowth)
    sequence = admit(kv, range(200))
    assert len(sequence.block_ids[0]) == 50 and len(sequence.block_ids[1]) == growth.most
    most = advance(kv, sequence, 200)
    assert most == 50 + growth.most, "no block is asked for in the middle of the prompt"


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("window", [1, 2, 8, 9])
@pytest.mark.parametrize("step", [1, 5, 8])
def test_needed_blocks_are_there_at_every_position(block_size, window, step):
    groups = (KVGroup("full", (0,)), KVGroup("sliding", (1,), window))
    kv = make(400, groups, block_size, max_step_tokens=8)
    sequence = admit(kv, range(70))
    while sequence.num_computed_tokens < 100:
        begin = sequence.num_computed_tokens
        sequence.token_ids += range(len(sequence.token_ids), begin + step)
        assert kv.allocate_slots(sequence, step) is not None
        for position in range(max(0, begin - window + 1), begin + step):
            assert all(ids[position // block_size] for ids in sequence.block_ids), position
        sequence.num_computed_tokens += step


def test_a_pool_holds_longer_sequences_with_windows():
    """A pool that holds 2,000 tokens in one group holds nearly 16,000 of Gemma 3's layers in six."""
    windows = [None if index % 6 == 5 else 512 for index in range(18)]
    groups = group_layers(windows, [1] * 18)
    one = longest_sequence(single_group(18), 16, 256, 125)
    six = longest_sequence(groups, 16, 256, 125 * 6)
    assert one == 2000
    assert six == (750 - 5 * 49) * 16 == 8080
    kv = KVManager(751, 16, groups=groups, max_step_tokens=256)
    sequence = admit(kv, range(six))
    advance(kv, sequence, six, 256)
    assert kv.capacity == six and kv.blocks_missing(kv.no_hit(), six + 1) > kv.pool.capacity


def test_windows_alone_have_no_longest_sequence():
    assert make(50, (SLIDING,)).capacity >= UNLIMITED - 4
    assert make(4, (SLIDING,)).capacity == 12, "three blocks hold less than a window and a step"


def test_a_prefix_needs_the_window_before_its_end_only():
    kv = make()
    sequence = admit(kv, range(41))
    advance(kv, sequence, 41)
    kv.free(sequence)
    hit = kv.lookup(KVSequence(list(range(60))))
    assert hit.num_tokens == 40
    assert 0 not in hit.block_ids[0]
    assert [index for index, block_id in enumerate(hit.block_ids[1]) if block_id] == [8, 9]
    again = admit(kv, range(60))
    assert again.num_computed_tokens == 40
    advance(kv, again, 60)
    kv.check_integrity([again])


def test_a_prefix_is_shorter_where_a_window_is_gone():
    kv = make(40)
    sequence = admit(kv, range(41))
    advance(kv, sequence, 41)
    tables = [list(ids) for ids in sequence.block_ids]
    kv.free(sequence)
    kv.pool.touch([tables[1][9]])
    kv.pool.uncache(tables[1][9])
    kv.pool.free([tables[1][9]])
    assert kv.lookup(KVSequence(list(range(60)))).num_tokens == 36
    kv.check_integrity([])


def test_the_hit_of_several_groups_is_what_all_of_them_have():
    """Against an exhaustive search over every length."""
    groups = (FULL, SLIDING, KVGroup("sliding", (2,), window=14))
    kv = make(200, groups)
    sequence = admit(kv, range(81))
    advance(kv, sequence, 81)
    kv.free(sequence)
    for gone in [(0, 19), (1, 18), (2, 15), (0, 12), (2, 11), (1, 9)]:
        group, index = gone
        block_id = kv.pool.prefixes.find(kv.key(sequence, index), group)
        if block_id is not None:
            kv.pool.uncache(block_id)
        found = kv.lookup(KVSequence(list(range(90)))).num_tokens // 4
        assert found == max(n for n in range(21) if served(kv, sequence, n)), gone


def served(kv, sequence, num_blocks):
    return all(
        kv.pool.prefixes.find(kv.key(sequence, index), group) is not None
        for group, growth in enumerate(kv.growth)
        for index in range(growth.first_needed(num_blocks * kv.block_size), num_blocks)
    )


def test_groups_of_one_key_are_kept_apart():
    kv = make()
    sequence = admit(kv, range(9))
    advance(kv, sequence, 9)
    kv.register_starting()
    key = kv.key(sequence, 0)
    assert kv.pool.prefixes.find(key, 0) == sequence.block_ids[0][0] != kv.pool.prefixes.find(key, 1)


def test_a_state_takes_its_blocks_once_and_is_never_shared():
    kv = make(groups=(FULL, STATE))
    first = admit(kv, range(9))
    assert len(first.block_ids[1]) == 2
    advance(kv, first, 50)
    assert len(first.block_ids[1]) == 2 and len(first.block_ids[0]) == 13
    kv.free(first)
    assert admit(kv, range(9)).num_computed_tokens == 0
    assert longest_sequence((FULL, STATE), 4, 8, 12) == 40


def test_states_alone_hold_any_number_of_tokens():
    kv = make(4, (STATE,))
    sequence = admit(kv, range(100))
    advance(kv, sequence, 1000)
    assert sequence.block_ids[0] and kv.pool.num_free == 1


def test_too_few_blocks_change_nothing():
    kv = make(7)
    sequence = admit(kv, range(12))
    assert kv.pool.num_free == 0
    sequence.num_computed_tokens = 12
    sequence.token_ids.append(12)
    assert kv.allocate_slots(sequence, 1) is None
    assert [len(ids) for ids in sequence.block_ids] == [3, 3]
    assert kv.pool.num_free == 1, "what lies behind the window is given back all the same"
    kv.check_integrity([sequence])


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda kv, s: s.block_ids[1].__setitem__(0, 5), "windows: a block behind the window"),
        (lambda kv, s: s.block_ids[0].__setitem__(-1, 0), "windows: the null block is in the live part"),
        (lambda kv, s: s.num_released.__setitem__(1, 12), "windows: "),
        (lambda kv, s: s.block_ids[0].__setitem__(1, s.block_ids[0][0]), "block_table: a block appears twice"),
        (lambda kv, s: s.block_ids[0].__setitem__(0, s.block_ids[1][-1]), "groups: block"),
        (lambda kv, s: s.block_ids.pop(), "groups: 1 tables"),
        (lambda kv, s: setattr(s, "num_slots", 1000), "num_slots: 1000 is wrong"),
        (lambda kv, s: setattr(s, "num_computed_tokens", 43), "num_computed_tokens: 43 of 41"),
        (lambda kv, s: setattr(s, "num_registered_blocks", 30), "registered_blocks: 30 blocks"),
        (lambda kv, s: s.token_ids.__setitem__(3, 77), "cached_tokens: block"),
        (lambda kv, s: kv.pool._references.__setitem__(s.block_ids[0][0], 2), "reference_counts: "),
        (lambda kv, s: kv.pool._references.__setitem__(0, 1), "reference_counts: |null_block: "),
        (lambda kv, s: kv.pool._spare.append(s.block_ids[0][0]), "spare_blocks: a spare block is elsewhere"),
        (lambda kv, s: setattr(kv.pool, "num_free", 3), "num_free: 3 is wrong"),
        (lambda kv, s: kv.pool._evictable.clear(), "lost_blocks: "),
        (lambda kv, s: kv.pool._evictable.push(s.block_ids[0][0]), "eviction_order: "),
        (lambda kv, s: kv.pool.prefixes._blocks[0].clear(), "prefix_table: keys and blocks differ"),
        (lambda kv, s: kv.pool.prefixes._keys.__setitem__(s.block_ids[0][0], (1, kv.key(s, 0))), "groups: |prefix_"),
    ],
)
def test_each_broken_invariant_is_named(harm, sentence):
    kv = make()
    kv.free(admit(kv, range(100, 120)))
    other = admit(kv, range(100, 120))
    advance(kv, other, 20)
    kv.free(other)
    sequence = admit(kv, range(41))
    advance(kv, sequence, 41)
    kv.register_starting()
    kv.check_integrity([sequence])
    harm(kv, sequence)
    with pytest.raises(IntegrityError, match=sentence):
        kv.check_integrity([sequence])
