"""The benchmark of model kinds: models that the engine knows, and bytes a token that are those of the chosen experts."""

import pytest

from benchmarks.families import table
from benchmarks.family_models import MODELS, weight_bytes


@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_promised_size(name):
    total, active = weight_bytes(MODELS[name])
    assert 100e6 < total / 2 < 300e6
    dense = name in ("hybrid", "delta", "mamba")
    assert active == total if dense else active < 0.6 * total


def test_experts_count_by_the_share_that_is_chosen():
    config = {**MODELS["experts"], "num_hidden_layers": 1}
    one = {**config, "num_experts_per_tok": 1}
    expert = 2 * 3 * config["hidden_size"] * config["moe_intermediate_size"]
    assert weight_bytes(config)[1] - weight_bytes(one)[1] == 3 * expert
    assert weight_bytes(config)[0] == weight_bytes(one)[0]


def test_the_table_has_every_figure_with_its_ratio():
    medians = {
        "core": {"prefill": 3000, "decode_1": 60, "decode_8": 80},
        "transformers": {"prefill": 1500, "decode_1": 10, "decode_8": 40},
    }
    result = {"model_type": "m", "weight_bytes": 4e8, "bytes_a_token": 1e8, "bandwidth_gb": 20, "share": 0.3}
    last = table([{**result, "medians": medians}]).splitlines()[-1]
    assert last == "| m | 400 | 100 | 3,000 (2.0x) | 60 (6.0x) | 80 (2.0x) | 30% of 20 GB/s |"
