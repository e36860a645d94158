"""What a row does not read is refused; what published checkpoints have is understood."""

import time

import pytest

from core.api.errors import UserError
from core_runtime.models.families import decoder_spec, unknown_keys
from tests.models.published import PUBLISHED

GEMMA, LLAMA, QWEN = (PUBLISHED[name] for name in ("gemma-3-1b-it", "Llama-3.1-8B-Instruct", "Qwen3-30B-A3B"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_read_to_the_last_key(name: str) -> None:
    decoder_spec(PUBLISHED[name])
    assert unknown_keys(PUBLISHED[name]) == []


@pytest.mark.parametrize(
    ("base", "key", "value"),
    [
        (LLAMA, "residual_multiplier", 0.22),
        (LLAMA, "attn_logit_softcapping", 30.0),
        (LLAMA, "layer_types", ["sliding_attention"] * 32),
        (GEMMA, "use_bidirectional_attention", True),
        (GEMMA, "hidden_act", "relu"),
        (QWEN, "routed_scaling_factor", 2.0),
    ],
)
def test_a_key_that_the_row_does_not_read_is_named(base: dict, key: str, value: object) -> None:
    config = {**base, key: value}
    with pytest.raises(UserError, match=f"{key} = .*--hf-overrides.{key} null"):
        decoder_spec(config)
    decoder_spec({**config, key: None})


def test_a_key_that_nobody_knows_is_listed() -> None:
    assert unknown_keys({**LLAMA, "trained_by": "us"}) == ["trained_by"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 2147483648),
        ("hidden_size", 1 << 40),
        ("num_experts", 2_000_000_000),
        ("num_experts", 8192),
        ("vocab_size", 1 << 40),
        ("rope_parameters", 5),
        ("rope_theta", float("nan")),
        ("rms_norm_eps", float("inf")),
    ],
)
def test_an_absurd_value_is_refused_at_once(key: str, value: object) -> None:
    started = time.process_time()
    with pytest.raises(UserError, match=f"{key}|experts in each layer"):
        decoder_spec({**QWEN, key: value})
    assert time.process_time() - started < 1.0
