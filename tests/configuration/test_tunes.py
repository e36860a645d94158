"""The table of arguments that are worth a trial: its names and values exist, and its checks say what they mean."""

from dataclasses import replace

import pytest

from core.args.schema import schema
from core_config.arguments.convert import convert
from core_config.arguments.tunes import TUNABLES, Situation

PRESENT = {name: field.default for name, field in schema().fields.items()}
CHATS = Situation(
    "cpu", 4, 8, 512, 64, 1 << 20, False, {}, PRESENT | {"max_num_seqs": 128, "max_num_batched_tokens": 2048}
)
ROWS = {row.name: row for row in TUNABLES}


def test_every_row_names_an_argument_and_values_that_it_takes():
    assert len(ROWS) == len(TUNABLES)
    for row in TUNABLES:
        field = schema().fields[row.name]
        assert row.why and row.helps and set(row.helps) <= {"ttft", "itl", "throughput"}
        assert row.values or row.factors or row.goal_factors
        for value in row.values:
            assert convert(field, value) == value, row.name
        assert not row.factors or field.base in (int, float), row.name


@pytest.mark.parametrize(
    "word", ["max_num_queued_reqs", "scheduling_policy", "api_key", "disable_log_stats", "batch_invariant"]
)
def test_what_is_no_matter_of_speed_is_not_in_the_table(word):
    assert word in schema().fields and word not in ROWS


def test_values_follow_the_present_one_and_the_goals():
    assert ROWS["max_num_seqs"].values_in(CHATS) == [64, 32, 256]
    assert ROWS["async_scheduling"].values_in(replace(CHATS, present=PRESENT | {"async_scheduling": True})) == [False]
    assert ROWS["max_stall_ms"].values_in(replace(CHATS, goals={"itl": 50.0, "tpot": 40.0})) == [40.0, 20.0]
    assert ROWS["max_num_mixed_batched_tokens"].values_in(CHATS) == []  # unset: there is nothing to multiply
    assert ROWS["block_size"].values_in(replace(CHATS, present=PRESENT | {"block_size": 16})) == [32, 64]


REASONS = {
    "kv_eviction": (
        "the load keeps at most 4,608 tokens, and the KV cache has room for 1,048,576",
        {"kv_tokens": 4000},
    ),
    "mamba_block_size": ("no layer of the model keeps a state", {"has_states": True}),
    "max_stall_ms": ("no goal limits the time between tokens", {"goals": {"itl": 5.0}}),
    "optimization_level": ("it concerns GPUs", {"device": "cuda"}),
    "renderer_num_workers": ("it needs 16 streams, and the load has 8", {"streams": None}),
    "api_server_count": ("it needs 8 processors, and there are 4", {"num_processors": 8, "streams": 32}),
}


@pytest.mark.parametrize("name", REASONS)
def test_arguments_are_left_out_where_they_cannot_help(name):
    reason, changes = REASONS[name]
    assert ROWS[name].needs(CHATS) == reason
    assert ROWS[name].needs(replace(CHATS, **changes)) == ""


def test_values_beyond_the_load_are_useless():
    assert ROWS["max_num_seqs"].useless(CHATS, 64) == "the load has at most 8 requests at once"
    assert (
        ROWS["max_num_seqs"].useless(CHATS, 4) == "" == ROWS["max_num_seqs"].useless(replace(CHATS, streams=None), 64)
    )
    assert ROWS["max_num_batched_tokens"].useless(CHATS, 1024) == ""
    assert "about 512 tokens" in ROWS["max_num_batched_tokens"].useless(replace(CHATS, streams=1), 1024)
    limited = replace(CHATS, goals={"tpot": 30.0})
    assert ROWS["stream_interval"].needs(CHATS) == "" and "break the goal tpot" in ROWS["stream_interval"].needs(
        limited
    )
    quantized = replace(CHATS, present=PRESENT | {"quantization": "gguf"})
    assert ROWS["quantization"].needs(CHATS) == "" and "already" in ROWS["quantization"].needs(quantized)
