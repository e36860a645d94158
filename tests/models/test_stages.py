"""Division of a model into stages, and of its layers into KV groups that lie evenly in them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma3TextConfig, LlamaConfig

from core.api.errors import UserError
from core_runtime.models.families import decoder_spec
from core_runtime.specs.kv_groups import MAX_GROUPS, group_layers, page_bytes
from core_runtime.specs.stage_groups import groups_of_stages, of_stage, stages_page_bytes
from core_runtime.specs.stages import FEWEST_EVEN, FEWEST_UNEVEN, fewest_together, mixer_ranges, stages_of

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
}


def llama(layers: int, vocabulary: int):
    return decoder_spec(LlamaConfig(**SHAPE, num_hidden_layers=layers, vocab_size=vocabulary).to_dict())


def test_the_slowest_stage_is_as_fast_as_possible():
    small = llama(8, 16)
    assert stages_of(small, 1) == [(0, 8)]
    assert stages_of(small, 2) == [(0, 4), (4, 8)]
    assert stages_of(small, 8) == [(layer, layer + 1) for layer in range(8)]
    numbers = 4 * 64 * 64 + 3 * 64 * 128  # of a layer
    assert stages_of(llama(8, 2 * numbers // 64), 2) == [(0, 5), (5, 8)]  # the head takes as long as two layers
    assert stages_of(llama(8, 20 * numbers // 64), 3) == [(0, 6), (6, 7), (7, 8)]


def test_of_equal_divisions_the_last_stages_are_the_smallest():
    assert stages_of(llama(7, 16), 2) == [(0, 4), (4, 7)]
    assert stages_of(llama(5, 16), 3) == [(0, 2), (2, 4), (4, 5)]


def test_too_few_layers_are_a_sentence():
    with pytest.raises(UserError, match=r"the 3 layers .* cannot be divided into 4 stages; .* 1 to 3"):
        stages_of(llama(3, 16), 4)


def test_uneven_stages_divide_only_many_sequences():
    even, uneven = llama(8, 16), llama(8, 64000)
    assert fewest_together(even, stages_of(even, 2)) == FEWEST_EVEN
    assert fewest_together(uneven, stages_of(uneven, 2)) == FEWEST_UNEVEN


def test_windows_take_no_more_room_than_in_one_stage():
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(18)]
    config = Gemma3TextConfig(**SHAPE, num_hidden_layers=18, vocab_size=16, layer_types=kinds, sliding_window=32)
    spec = decoder_spec(config.to_dict())
    windows = [mixer.window for mixer in spec.mixers]
    layer_bytes = [100] * 18
    whole = group_layers(windows, layer_bytes)
    stages = mixer_ranges(spec, stages_of(spec, 2))
    groups = groups_of_stages(windows, layer_bytes, stages, hybrid=True, states=(), drafts=False)
    # Bytes of a token's blocks: those of each group, in all stages.
    divided = len(groups) * stages_page_bytes(groups, layer_bytes, stages)
    assert divided <= 1.2 * len(whole) * page_bytes(whole, layer_bytes)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    kinds=st.lists(st.sampled_from(["full", "sliding", "short", "state"]), min_size=2, max_size=24),
    cut=st.integers(1, 23),
    hybrid=st.booleans(),
    drafts=st.booleans(),
)
def test_each_layer_is_in_one_group(kinds, cut, hybrid, drafts):
    windows = [{"sliding": 32, "short": 8}.get(kind) for kind in kinds]
    states = {layer for layer, kind in enumerate(kinds) if kind == "state"}
    layer_bytes = [350 if layer in states else 100 for layer in range(len(kinds))]
    cut = min(cut, len(kinds) - 1)
    stages = [(0, cut), (cut, len(kinds))]
    groups = groups_of_stages(windows, layer_bytes, stages, hybrid=hybrid, states=states, drafts=drafts)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(kinds)))
    assert len(groups) <= MAX_GROUPS and all(group.layers for group in groups)
    for stage in stages:
        local = of_stage(groups, stage)
        assert [group.kind for group in local] == [group.kind for group in groups]
        held = sorted(layer for group in local for layer in group.layers)
        assert held == list(range(stage[1] - stage[0]))
    for group in groups:
        if group.kind == "state":
            assert set(group.layers) <= states
            assert group.num_state_blocks >= 1 and group.num_spare_blocks == drafts * group.num_state_blocks
        elif hybrid and len({windows[layer] for layer in range(len(kinds)) if layer not in states}) > 1:
            assert {windows[layer] for layer in group.layers} == {group.window}
